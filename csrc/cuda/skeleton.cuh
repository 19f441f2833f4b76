// SPDX-License-Identifier: Apache-2.0
// Mechanisms that change each weight on its own, in CUDA: thread blocks take chunks of a plan, their warps the steps of
// a chunk (step.cuh).
#pragma once

#include "step.cuh"

namespace ldpk {

// The warps of a block take the steps of a chunk in turn, the two halves of each with a barrier between them.
template <class S>
LDPK_DEVICE void run_chunk(const Span& span, const typename S::Law& law, const Key& key, int64_t chunk_begin,
                           int32_t chunk_elements, int warp, int lane, uint32_t* tile) {
  static_assert(kChunkUnit % (kWarps * S::elements) == 0);
  Chunk<typename S::Bits, typename S::Out> chunk;
  chunk.data = reinterpret_cast<typename S::Bits*>(span.data) + chunk_begin;
  chunk.out = reinterpret_cast<typename S::Out*>(span.out) + chunk_begin / S::per_out;
  chunk.first = span.first + chunk_begin;
  chunk.begin = chunk_begin < 0 ? static_cast<int32_t>(-chunk_begin) : 0;
  chunk.end =
      span.numel - chunk_begin < chunk_elements ? static_cast<int32_t>(span.numel - chunk_begin) : chunk_elements;
  settle(chunk.data);
  settle(chunk.out);
  chunk.aligned = span.data % 16 == 0;
  for (int at = warp * S::elements; at < chunk.end; at += kWarps * S::elements) {
    S step(chunk, law, key, at, lane);
    step.begin(tile);
    __syncwarp();
    step.finish(tile);
    __syncwarp();
  }
}

// Blocks of a multiprocessor, at least: ChaCha20 needs the registers, and computes rather than waits for memory.
template <class Cipher>
constexpr int kBlocks = Cipher::block_words > 4 ? 2 : 3;

// A thread block's chunk. A kernel serves the dtypes that it names.
template <class Shape, class Cipher, Output result, int capacity, Dtype... dtypes>
__global__ void __launch_bounds__(kWarps* kLanes, kBlocks<Cipher>)
    chunk_kernel(const __grid_constant__ PlanOf<Shape, capacity> plan) {
  constexpr int tile_words = InChunks<Shape>::template Step<Cipher, Dtype::bf16, result>::tile_words;  // the largest
  __shared__ alignas(16) uint32_t tiles[kWarps][tile_words];
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const int32_t c = blockIdx.x;
  const Key key = load_key<Cipher>(plan.key);
  const int s = plan.span_of(c);
  const Span& span = plan.spans[s];
  const int64_t begin = int64_t{c - plan.first_chunk[s]} * plan.chunk - lead(span);
  with_dtype_of<dtypes...>(span, [&](auto dtype) {
    using S = typename InChunks<Shape>::template Step<Cipher, decltype(dtype)::value, result>;
    run_chunk<S>(span, plan.laws[s], key, begin, plan.chunk, warp, lane, tiles[warp]);
  });
}

}  // namespace ldpk
