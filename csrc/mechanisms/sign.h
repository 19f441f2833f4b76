// SPDX-License-Identifier: Apache-2.0
// Randomised response on the side of the center that a weight lies on. docs/mechanisms/sign.md.
//
// k is one of three integers: `at`, `at` + `below`, `at` + `above`. Privacy is the host's choice of them and holds for
// every bit pattern of a weight, because no path out of `threshold` gives another.
#pragma once

#include "../lanes.h"

namespace ldpk {

struct SignLaw {
  double center;
  double steep;   // a power of two: any difference of two weights but 0, times its square, is beyond 2^31
  int64_t at;     // k of a weight at the center, and of a NaN
  int64_t below;  // what a weight below it adds to k, at most 0
  int64_t above;  // what a weight above it adds, at least 0
  uint64_t lower;
  uint64_t upper;
};

template <class Lanes>
struct Sign {
  using Law = SignLaw;
  using i32 = typename Lanes::i32;

  // Different weights differ by a subnormal number at least, which the kernels do not flush to zero.
  template <class Float, class SomeLaw>
  static LDPK_FN i32 threshold(Float x, const SomeLaw& law) {
    x = Lanes::replace_nan(x, law.center);
    const Float steep = Lanes::broadcast(x, law.steep);
    const Float z = (x - Lanes::broadcast(x, law.center)) * steep * steep;  // 0, or far from it
    return Lanes::round_within(z, static_cast<int32_t>(law.below), static_cast<int32_t>(law.above)) +
           static_cast<int32_t>(law.at);
  }
};

}  // namespace ldpk
