// SPDX-License-Identifier: Apache-2.0
// The plans of one-bit mechanisms: their laws as a plan carries them, and the two-point mechanism's guess.
#pragma once

#include "../mechanisms/registry.h"
#include "plan.h"

namespace ldpk {

constexpr float kSure = 0.5625f;

// A number in fp32 whose sign is the two-point mechanism's decision wherever its magnitude exceeds kSure: it costs less
// than the threshold, and only where it is not sure is the threshold asked for. Proof of kSure:
// docs/mechanisms/two_point.md, "A guess that knows when it is one". It has a line from the difference of weight and
// center to the share of [k_lo, k_hi] that the threshold has, and that share in units of high draws.
struct TwoPointGuess {
  float center;
  float rise, start;  // share = rise * difference + start, kept to [0, 1]
  float width, base;  // guess = share * width + base - draw

  TwoPointGuess() = default;
  explicit TwoPointGuess(const TwoPointLaw& law) {
    center = static_cast<float>(law.center);
    const double lowest = static_cast<double>(law.k_lo), range = static_cast<double>(law.k_hi - law.k_lo);
    rise = range > 0 ? static_cast<float>(static_cast<double>(static_cast<float>(law.slope)) / range) : 0.0f;
    start = range > 0 ? static_cast<float>(-lowest / range) : 0.0f;
    width = static_cast<float>(range / 65536);
    base = static_cast<float>(lowest / 65536 - 0.5);
  }

  // Positive for upper. The difference is a number.
  LDPK_DEVICE float operator()(float difference, float draw) const {
    return fused(kept(fused(difference, rise, start)), width, base - draw);
  }

  static LDPK_DEVICE float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
  // To [0, 1]; 0 for a NaN.
  static LDPK_DEVICE float kept(float x) { return __saturatef(x); }
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

constexpr int kFewSpans = 32;
constexpr int kManySpans = 256;
static_assert(sizeof(PlanOf<OneBit<TwoPoint>, kFewSpans>) <= kShortPlan);
static_assert(sizeof(PlanOf<OneBit<TwoPoint>, kManySpans>) <= kLargestPlan);

}  // namespace ldpk
