// SPDX-License-Identifier: Apache-2.0
// The plans of one-bit mechanisms: their laws as a plan carries them, and how large chunks are.
#pragma once

#include "../dtype.h"
#include "../mechanisms/registry.h"
#include "../order.h"
#include "plan.h"
#include "two_point_guess.h"

namespace ldpk {

constexpr int kWarps = 8;  // of a thread block

// A chunk is a multiple of what a block's threads take at once, at most 32 elements each.
constexpr int kChunkUnit = kWarps * kLanes * 32;

// A law as a plan carries it: itself, or with what a kernel wants besides.
template <class Law>
struct DeviceLaw {
  using Planned = Law;
};

struct TwoPointPlanned {
  double center, slope, fallback;
  int32_t k_lo, k_hi;
  uint64_t lower, upper;
  TwoPointGuess guess;  // for weights that are compared in fp32

  TwoPointPlanned() = default;
  explicit TwoPointPlanned(const TwoPointLaw& law)
      : center(law.center),
        slope(law.slope),
        fallback(law.fallback),
        k_lo(static_cast<int32_t>(law.k_lo)),
        k_hi(static_cast<int32_t>(law.k_hi)),
        lower(law.lower),
        upper(law.upper),
        guess(law) {}
};

template <>
struct DeviceLaw<TwoPointLaw> {
  using Planned = TwoPointPlanned;
};

// A span's chunks are counted from the stream unit in which it begins, `lead` elements before its first.
template <template <class> class Mechanism, int capacity>
struct OneBitPlan : Plan<typename DeviceLaw<typename OneBit<Mechanism>::Law>::Planned, capacity> {
  int32_t chunk;  // elements
};

constexpr int kFewSpans = 32;
constexpr int kManySpans = 256;
static_assert(sizeof(OneBitPlan<TwoPoint, kFewSpans>) <= kShortPlan);
static_assert(sizeof(OneBitPlan<TwoPoint, kManySpans>) <= kLargestPlan);

// A block's start-up is small beside eight units; small work is cut finer, to reach every multiprocessor.
inline int32_t chunk_for(const Span* spans, int64_t count, int64_t blocks) {
  int64_t elements = 0;
  for (int64_t s = 0; s < count; ++s) elements += spans[s].numel;
  const int64_t units = elements / (blocks * kChunkUnit);
  return kChunkUnit * static_cast<int32_t>(units < 1 ? 1 : units > 8 ? 8 : units);
}

// launch(plan, chunks) for as many launches as the spans need.
template <template <class> class Mechanism, int capacity, class Launch>
void for_one_bit_plans(const Span* spans, const typename OneBit<Mechanism>::Law* laws, int64_t count,
                       const uint32_t* key, int32_t chunk, Launch launch) {
  using P = OneBitPlan<Mechanism, capacity>;
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
