// SPDX-License-Identifier: Apache-2.0
// The integers of the mechanisms of one bit, as ldpkernels/laws/two_point.py has them: the same steps in the same
// order.
#pragma once

#include "../mechanisms/two_point.h"
#include "format.h"

namespace ldpk {

// What a kernel executes, and the two outputs as `low` and `high` in units of 1 / `denominator`.
struct OneBitIntegers {
  TwoPointLaw law;
  Wide low, high, denominator;
  const ExecutedRange& range;
  const Format& compute;

  // The k with which the outputs are the center on average.
  int64_t threshold_at_center() const {
    const Wide width = high - low;
    if (!width) return 0;
    const Wide per = Wide(1) << -range.unit;
    const Wide above = range.center * denominator * 2 - per * (low + high);  // of the outputs' middle
    const Wide k = nearest(above * kDraws, per * width * 2);
    return std::min(std::max(k, Wide(law.k_lo)), Wide(law.k_hi)).to_int64();
  }
};

// The numbers of a format at or outside low and high whose middle a kernel can subtract, in units of 2^exponent.
struct Outputs {
  Wide lower, upper;
  int64_t exponent;
};

inline Outputs outputs_around(const Wide& low, const Wide& high, const Wide& half, int64_t unit, const Format& format,
                              const Format& compute) {
  const int64_t low_spacing = format.spacing_at(low, half, unit), high_spacing = format.spacing_at(high, half, unit);
  int64_t exponent = std::min(low_spacing, high_spacing);
  Wide lower = floor_at(low, half, unit - low_spacing) << (low_spacing - exponent);
  Wide upper = -floor_at(-high, half, unit - high_spacing) << (high_spacing - exponent);
  if (compute.holds_at(lower + upper, exponent - 1)) return {lower, upper, exponent};
  exponent = format.spacing_at(std::max(lower.abs(), upper.abs()), 1, exponent);
  lower = floor_at(low, half, unit - exponent);
  const Wide least = -floor_at(-high, half, unit - exponent);
  upper = is_odd(lower + least) ? least + 1 : least;
  if (format.exceeded(upper, 1, exponent)) throw Declined{};
  return {lower, upper, exponent};
}

// A range's law for reports, or for values written back in `dtype`; `lowest` is the least threshold that eps allows.
inline OneBitIntegers one_bit_integers(const ExecutedRange& range, int64_t lowest, Dtype dtype, bool report) {
  const Format &format = format_of(dtype), &compute = format_of(compute_dtype(dtype));
  const auto& [c, r, center, radius, unit] = range;
  const int64_t half = kDraws / 2 - lowest;
  const Wide low = center * half - radius * (kDraws / 2), high = center * half + radius * (kDraws / 2);
  const Wide largest = std::max(-low, high);
  if (report) {
    if (compute.exceeded(largest, half, unit + 1)) throw Declined{};
    const double slope = radius ? ceil_at(compute, half, radius, -unit) : 1.0;
    const int64_t k = radius ? half : 0;
    return {{c, slope, c, -k, k, 0, 0}, low, high, Wide(half) << -unit, range, compute};
  }
  if (format.exceeded(largest, half, unit)) throw Declined{};
  const auto [lower, upper, exponent] = outputs_around(low, high, half, unit, format, compute);
  // T = 2^31 + 2^32 (w - middle) / width, and w is from center - radius to center + radius: all in units of 2^fine.
  const int64_t fine = std::min(unit, exponent - 1);
  const Wide middle = (lower + upper) << (exponent - 1 - fine), width = (upper - lower) << (exponent - fine);
  const Wide at = center << (unit - fine), reach = radius << (unit - fine);
  Wide k_hi = width ? floor_of((at + reach - middle) * kDraws, width) : 0;
  Wide k_lo = width ? -floor_of((middle - at + reach) * kDraws, width) : 0;
  if (k_lo > k_hi) {  // the range is narrower than a step of T: one threshold for every weight
    k_lo = std::max(nearest((at - middle) * kDraws, width), Wide(1 - kDraws / 2));
    k_lo = k_hi = std::min(k_lo, Wide(kDraws / 2 - 1));
  }
  // Privacy of what is executed, in integers: T_hi / T_lo and its mirror are within (2^32 - lowest) / lowest <= e^eps.
  const Wide t_lo = k_lo + kDraws / 2, t_hi = k_hi + kDraws / 2, most = kDraws - lowest;
  const bool inside = Wide(0) < t_lo && t_lo <= t_hi && t_hi < Wide(kDraws);
  const bool upper_ok = t_hi * lowest <= most * t_lo;
  const bool lower_ok = (Wide(kDraws) - t_lo) * lowest <= most * (Wide(kDraws) - t_hi);
  if (!(inside && upper_ok && lower_ok)) throw Declined{};
  const double slope = k_lo < k_hi ? ceil_at(compute, kDraws, upper - lower, -exponent) : 1.0;
  const TwoPointLaw law{scaled(lower + upper, exponent - 1),
                        slope,
                        c,
                        k_lo.to_int64(),
                        k_hi.to_int64(),
                        bits_of(dtype, scaled(lower, exponent)),
                        bits_of(dtype, scaled(upper, exponent))};
  const int64_t up = std::max<int64_t>(exponent, 0);
  return {law, lower << up, upper << up, Wide(1) << (up - exponent), range, compute};
}

}  // namespace ldpk
