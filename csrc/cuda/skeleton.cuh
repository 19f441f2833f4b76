// SPDX-License-Identifier: Apache-2.0
// The CUDA skeleton: thread blocks take chunks of a plan, their warps the steps of a chunk (step.cuh). All but the
// barrier is __host__ __device__: tests/cuda/emulate.cpp runs it lane by lane without a GPU.
#pragma once

#include "step.cuh"

namespace ldpk {

// The warps of a block take the steps of a chunk in turn. Warp runs a step's halves on 32 lanes.
template <class Cipher, Dtype dtype, Output result, class Warp>
LDPK_FN void two_point_chunk(const Span& span, const PlanLaw& plan_law, const Key& key, int64_t chunk_begin,
                             int32_t chunk_elements, int warp_index, const Warp& warp) {
  using S = Step<Cipher, dtype, result>;
  static_assert(kChunkUnit % (kWarps * S::elements) == 0);
  const Law<typename S::Float, typename S::Bits> law(plan_law);
  Chunk<typename S::Bits, typename S::Out> chunk;
  chunk.data = reinterpret_cast<typename S::Bits*>(span.data) + chunk_begin;
  chunk.out = reinterpret_cast<typename S::Out*>(span.out) + chunk_begin / (result == Output::bits ? 8 : 1);
  chunk.first = span.first + chunk_begin;
  chunk.begin = chunk_begin < 0 ? static_cast<int32_t>(-chunk_begin) : 0;
  chunk.end =
      span.numel - chunk_begin < chunk_elements ? static_cast<int32_t>(span.numel - chunk_begin) : chunk_elements;
  settle(chunk.data);
  settle(chunk.out);
  chunk.aligned = span.data % 16 == 0;
  for (int at = warp_index * S::elements; at < chunk.end; at += kWarps * S::elements) {
    warp.template run<S>(chunk, law, key, at);
  }
}

// A thread block's chunk. A kernel serves the dtypes that it names.
template <class Cipher, Output result, Dtype... dtypes, int capacity, class Warp>
LDPK_FN void two_point_block(const Plan<capacity>& plan, int32_t c, int warp_index, const Warp& warp) {
  Key key;
  key.size = Cipher::key_words;
#pragma unroll
  for (int w = 0; w < Cipher::key_words; ++w) key.words[w] = plan.key[w];
  const int s = plan.span_of(c);
  const Span& span = plan.spans[s];
  const int64_t begin = int64_t{c - plan.first_chunk[s]} * plan.chunk - lead(span);
  const auto run = [&](auto dtype) {
    constexpr Dtype d = decltype(dtype)::value;
    if (span.dtype == static_cast<int64_t>(d)) {
      two_point_chunk<Cipher, d, result>(span, plan.laws[s], key, begin, plan.chunk, warp_index, warp);
    }
  };
  (run(std::integral_constant<Dtype, dtypes>{}), ...);
}

#if defined(__CUDACC__)
struct DeviceWarp {
  int lane;
  uint32_t* tile;
  template <class Step, class... Arguments>
  LDPK_FN void run(const Arguments&... arguments) const {
    Step step(arguments..., lane);
    step.begin(tile);
#if defined(__CUDA_ARCH__)
    __syncwarp();
#endif
    step.finish(tile);
#if defined(__CUDA_ARCH__)
    __syncwarp();
#endif
  }
};

// Blocks of a multiprocessor, at least: ChaCha20 needs the registers, and computes rather than waits for memory.
template <class Cipher>
constexpr int kBlocks = Cipher::block_words > 4 ? 2 : 3;

template <class Cipher, Output result, int capacity, Dtype... dtypes>
__global__ void __launch_bounds__(kWarps* kLanes, kBlocks<Cipher>)
    two_point_kernel(const __grid_constant__ Plan<capacity> plan) {
  constexpr int tile_words = Step<Cipher, Dtype::bf16, result>::elements / 2;
  __shared__ alignas(16) uint32_t tiles[kWarps][tile_words];
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  two_point_block<Cipher, result, dtypes...>(plan, blockIdx.x, warp, DeviceWarp{lane, tiles[warp]});
}

template <class Cipher>
__global__ void keystream_kernel(const uint32_t* key_words, uint32_t stream, uint64_t first_block, int64_t blocks,
                                 uint32_t* out) {
  Key key;
  key.size = Cipher::key_words;
#pragma unroll
  for (int w = 0; w < Cipher::key_words; ++w) key.words[w] = key_words[w];
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t b = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; b < blocks; b += stride) {
    uint32_t words[Cipher::block_words];
    Cipher::block(key, stream, 0, first_block + b, words);
#pragma unroll
    for (int w = 0; w < Cipher::block_words; ++w) out[b * Cipher::block_words + w] = words[w];
  }
}
#endif

}  // namespace ldpk
