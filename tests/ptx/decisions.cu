// SPDX-License-Identifier: Apache-2.0
// What the CUDA kernels decide of weights and draws that a test chooses, by their functions and by the definition.
#include "../../csrc/cuda/cells.cuh"

namespace ldpk {
namespace {

constexpr int kThreads = 256;

__device__ int64_t place() { return int64_t{blockIdx.x} * kThreads + threadIdx.x; }

__global__ void guess_kernel(TwoPointGuess guess, const float* x, const float* draws, float* out, int64_t n) {
  const int64_t i = place();
  if (i < n) out[i] = guess(x[i] - guess.center, draws[i]);
}

template <template <class> class Mechanism, class Law, class Planned>
__global__ void cells_kernel(Law law, Planned planned, const float* x, const uint32_t* draws, int32_t* turns,
                             uint32_t* cells, int64_t n) {
  const int64_t i = place();
  if (i >= n) return;
  const CellsLaw<float, Planned> ours{planned};
  turns[i] = ours.turn(x[i]);
  turns[n + i] = Piecewise<ScalarLanes>::turn(x[i], Mechanism<ScalarLanes>::circle(law));
  cells[i] = ours.cell(turns[n + i], draws[i]);
  cells[n + i] = Mechanism<ScalarLanes>::cell(turns[n + i], draws[i], law);
}

template <template <class> class Mechanism, class Law>
void decide(const Law* law, const float* x, const uint32_t* draws, int32_t* turns, uint32_t* cells, int64_t n) {
  using Planned = typename PlanOf<Cells<Mechanism>, 1>::Law;
  const unsigned blocks = static_cast<unsigned>((n + kThreads - 1) / kThreads);
  cells_kernel<Mechanism><<<blocks, kThreads>>>(*law, Planned(*law), x, draws, turns, cells, n);
}

}  // namespace
}  // namespace ldpk

extern "C" {

// The two-point mechanism's guess, for weights without NaN and high draws, from -2^15 to 2^15 - 1.
void guess(const ldpk::TwoPointLaw* law, const float* x, const float* draws, float* out, int64_t n) {
  const unsigned blocks = static_cast<unsigned>((n + ldpk::kThreads - 1) / ldpk::kThreads);
  ldpk::guess_kernel<<<blocks, ldpk::kThreads>>>(ldpk::TwoPointGuess(*law), x, draws, out, n);
}

// How a circle turns for weights in fp32, and the cells of draws: n by the kernels and then n by the definition.
void decide_piecewise(const ldpk::PiecewiseLaw* law, const float* x, const uint32_t* draws, int32_t* turns,
                      uint32_t* cells, int64_t n) {
  ldpk::decide<ldpk::Piecewise>(law, x, draws, turns, cells, n);
}
void decide_hybrid(const ldpk::HybridLaw* law, const float* x, const uint32_t* draws, int32_t* turns, uint32_t* cells,
                   int64_t n) {
  ldpk::decide<ldpk::Hybrid>(law, x, draws, turns, cells, n);
}

}  // extern "C"
