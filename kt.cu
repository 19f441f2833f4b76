#include "/tmp/wt/gpu/csrc/cuda/clipped_noise.cuh"
namespace ldpk { void use(const ClippedPlan& plan) { clipped_sums_kernel<false, Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f16><<<1,1>>>(plan); clipped_sums_kernel<true, Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f16><<<1,1>>>(plan); } }
