// SPDX-License-Identifier: Apache-2.0
// The plans of one-bit mechanisms: their laws as a plan carries them.
#pragma once

#include "../mechanisms/registry.h"
#include "chunks.h"
#include "two_point_guess.h"

namespace ldpk {

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

constexpr int kFewSpans = 32;
constexpr int kManySpans = 256;
static_assert(sizeof(PlanOf<OneBit<TwoPoint>, kFewSpans>) <= kShortPlan);
static_assert(sizeof(PlanOf<OneBit<TwoPoint>, kManySpans>) <= kLargestPlan);

}  // namespace ldpk
