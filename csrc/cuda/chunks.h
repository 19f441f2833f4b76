// SPDX-License-Identifier: Apache-2.0
// Plans whose thread blocks take chunks of a span that are all of one size.
#pragma once

#include "../dtype.h"
#include "../order.h"
#include "plan.h"

namespace ldpk {

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

// A block's start-up is small beside eight units; small work is cut finer, to reach every multiprocessor.
inline int32_t chunk_for(const Span* spans, int64_t count, int64_t blocks) {
  int64_t elements = 0;
  for (int64_t s = 0; s < count; ++s) elements += spans[s].numel;
  const int64_t units = elements / (blocks * kChunkUnit);
  return kChunkUnit * static_cast<int32_t>(units < 1 ? 1 : units > 8 ? 8 : units);
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
