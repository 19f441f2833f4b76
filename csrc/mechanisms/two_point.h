// SPDX-License-Identifier: Apache-2.0
// The two-point mechanism of LDP-FL (equation 2), decided by comparing integers. docs/mechanisms/two_point.md.
//
// A weight x becomes an integer k in [k_lo, k_hi]; a draw u is uniform on the 2^32 integers from -2^31; the report is
// "upper" if u < k, so P(upper) = (2^31 + k) / 2^32 exactly. Privacy is the host's choice of k_lo and k_hi and holds
// for every bit pattern of x, because no path out of `threshold` leaves that interval.
#pragma once

#include "../lanes.h"

namespace ldpk {

struct TwoPointLaw {
  double center;    // x = center is reported as a fair coin
  double slope;     // > 0; thresholds a unit of weight
  double fallback;  // what a NaN weight is taken for
  int64_t k_lo;
  int64_t k_hi;
  uint64_t lower;  // the two outputs, as bits of the tensor's dtype
  uint64_t upper;
};

template <class Lanes>
struct TwoPoint {
  using Law = TwoPointLaw;
  using i32 = typename Lanes::i32;

  template <class Float, class SomeLaw>
  static LDPK_FN i32 threshold(Float x, const SomeLaw& law) {
    return Lanes::round_within(scaled(x, law), static_cast<int32_t>(law.k_lo), static_cast<int32_t>(law.k_hi));
  }

  static LDPK_FN bool has_near(const Law& law) { return halves_agree(static_cast<int32_t>(law.k_lo)); }
  template <class Float>
  static LDPK_FN i32 near(Float x, const Law& law) {
    return Lanes::round_near(scaled(x, law), static_cast<int32_t>(law.k_lo), static_cast<int32_t>(law.k_hi));
  }

 private:
  // (x - center) * slope is a subtraction, then a multiplication: there is nothing to contract into a fused operation,
  // so every backend rounds it alike. x * slope - center * slope would lose the weight where |center| >> r.
  template <class Float, class SomeLaw>
  static LDPK_FN Float scaled(Float x, const SomeLaw& law) {
    x = Lanes::replace_nan(x, law.fallback);
    return (x - Lanes::broadcast(x, law.center)) * Lanes::broadcast(x, law.slope);
  }
};

}  // namespace ldpk
