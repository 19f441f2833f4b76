// SPDX-License-Identifier: Apache-2.0
// One launch's work, as the kernel's parameter, and where a function of csrc/cuda may run: LDPK_DEVICE on a device
// alone, LDPK_FN also on the host, which makes plans.
#pragma once

#include <stdexcept>

#include "../dtype.h"
#include "../order.h"

#define LDPK_DEVICE __device__ __forceinline__

namespace ldpk {

constexpr int kLanes = 32;

// Spans are cut where these units of the stream begin: a whole block of either cipher, and whole vectors.
constexpr int kStreamUnit = 32;
LDPK_FN int64_t lead(const Span& span) { return span.first % kStreamUnit; }

constexpr int64_t kLargestPlan = 32764;  // bytes, that CUDA passes by value since 12.1
constexpr int64_t kShortPlan = 4096;     // that every CUDA does: a short parameter is a faster launch

// Chunk c of the launch belongs to the last span s with first_chunk[s] <= c. A chunk is what one thread block does.
template <class LawOf, int capacity_of>
struct Plan {
  using Law = LawOf;
  static constexpr int capacity = capacity_of;

  const uint32_t* key;
  int32_t count;
  int32_t first_chunk[capacity + 1];
  Span spans[capacity];
  Law laws[capacity];

  LDPK_DEVICE int span_of(int32_t c) const {
    int low = 0, high = count;  // first_chunk[low] <= c < first_chunk[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (first_chunk[middle] <= c ? low : high) = middle;
    }
    return low;
  }
};

template <class Cipher>
LDPK_DEVICE Key load_key(const uint32_t* words) {
  Key key;
  key.size = Cipher::key_words;
#pragma unroll
  for (int w = 0; w < Cipher::key_words; ++w) key.words[w] = words[w];
  return key;
}

// launch(plan, chunks, start) for as many launches as `count` spans need; `start` is the plan's first span, and there
// may be no chunks. law_of(i) is span i's law, chunks_of(span, law) how many chunks it has. What else is in `plan`
// stays.
template <class P, class LawOf, class ChunksOf, class Launch>
void for_plans(P& plan, const Span* spans, int64_t count, LawOf law_of, ChunksOf chunks_of, Launch launch) {
  for (int64_t start = 0; start < count; start += P::capacity) {
    plan.count = static_cast<int32_t>(count - start < P::capacity ? count - start : P::capacity);
    int64_t chunks = 0;
    for (int s = 0; s < plan.count; ++s) {
      plan.spans[s] = spans[start + s];
      plan.laws[s] = law_of(start + s);
      plan.first_chunk[s] = static_cast<int32_t>(chunks);
      if (plan.spans[s].numel > 0) chunks += chunks_of(plan.spans[s], plan.laws[s]);
      if (chunks > INT32_MAX) throw std::invalid_argument("too many elements for one launch");
    }
    plan.first_chunk[plan.count] = static_cast<int32_t>(chunks);
    launch(plan, static_cast<int32_t>(chunks), start);
  }
}

// Of mechanisms whose thread blocks take chunks of a span that are all of one size.
constexpr int kWarps = 8;  // of a thread block

// A chunk is a multiple of what a block's threads take at once, at most 32 elements each.
constexpr int kChunkUnit = kWarps * kLanes * 32;

// A span's chunks are counted from the stream unit in which it begins, `lead` elements before its first.
template <class Law, int capacity>
struct ChunkedPlan : Plan<Law, capacity> {
  int32_t chunk;  // elements
};

// A law as a plan carries it: itself, or with what a kernel wants besides.
template <class Law>
struct DeviceLaw {
  using Planned = Law;
};

// What a shape of mechanisms (mechanisms/shapes.h) is in chunks: how many spans are `few` and `many` of a plan, and a
// warp's Step<Cipher, dtype, result>.
template <class Shape>
struct InChunks;

template <class Shape, int capacity>
using PlanOf = ChunkedPlan<typename DeviceLaw<typename Shape::Law>::Planned, capacity>;

// At most so many units: a block's start-up is small beside them. Small work is cut finer, to reach every
// multiprocessor.
inline int32_t chunk_for(const Span* spans, int64_t count, int64_t blocks, int32_t unit, int32_t most) {
  int64_t elements = 0;
  for (int64_t s = 0; s < count; ++s) elements += spans[s].numel;
  const int64_t units = elements / (blocks * unit);
  return unit * static_cast<int32_t>(units < 1 ? 1 : units > most ? most : units);
}

// launch(plan, chunks) for as many launches as the spans need. A plan of type P makes its own laws of `laws`.
template <class P, class Law, class Launch>
void for_chunked_plans(const Span* spans, const Law* laws, int64_t count, const uint32_t* key, int32_t chunk,
                       Launch launch) {
  P plan;
  plan.key = key;
  plan.chunk = chunk;
  for_plans(
      plan, spans, count, [&](int64_t i) { return typename P::Law(laws[i]); },
      [&](const Span& span, const auto&) { return divided_up(lead(span) + span.numel, chunk); },
      [&](const P& filled, int32_t chunks, int64_t) {
        if (chunks > 0) launch(filled, chunks);
      });
}

}  // namespace ldpk
