// SPDX-License-Identifier: Apache-2.0
// The two-point mechanism's three outputs on the CPU: values in place, bits, thresholds.
#pragma once

#include "../mechanisms/two_point.h"
#include "skeleton.h"

namespace ldpk {

// Keystream 0 has the high halves of the draws, keystream 1 the low ones.
template <class Lanes, Dtype dtype, class Draws>
LDPK_FN typename Lanes::Mask two_point_upper(const typename Element<dtype>::Bits* in, const Draws& draws,
                                             const TwoPointLaw& law) {
  const auto k = TwoPoint<Lanes>::threshold(Element<dtype>::template load<Lanes>(in), law);
  return TwoPoint<Lanes>::is_upper(k, draws[0], [&] { return draws.rare(1) & 0xffff; });
}

struct TwoPointValues {
  using Law = TwoPointLaw;
  static constexpr int prefilled = 1, per_out = 1;
  static constexpr bool in_place = true;
  template <Dtype dtype>
  using Out = typename Element<dtype>::Bits;

  template <class Lanes, Dtype dtype, class Draws>
  static LDPK_FN void group(const Out<dtype>* in, Out<dtype>* out, const Draws& draws, const Law& law) {
    const auto lower = static_cast<Out<dtype>>(law.lower), upper = static_cast<Out<dtype>>(law.upper);
#pragma GCC unroll 8
    for (int i = 0; i < kGroup<Lanes>; i += Lanes::count) {
      Lanes::store_choice(out + i, two_point_upper<Lanes, dtype>(in + i, draws.at(i), law), lower, upper);
    }
  }
};

struct TwoPointBits {
  using Law = TwoPointLaw;
  static constexpr int prefilled = 1, per_out = 8;
  static constexpr bool in_place = false;
  template <Dtype>
  using Out = uint8_t;

  template <class Lanes, Dtype dtype, class Draws>
  static LDPK_FN void group(const typename Element<dtype>::Bits* in, uint8_t* out, const Draws& draws, const Law& law) {
    uint32_t bits = 0;
#pragma GCC unroll 8
    for (int i = 0; i < kGroup<Lanes>; i += Lanes::count) {
      bits |= Lanes::bits(two_point_upper<Lanes, dtype>(in + i, draws.at(i), law)) << i;
    }
    memcpy(out, &bits, kGroup<Lanes> / 8);
  }
};

struct TwoPointThresholds {
  using Law = TwoPointLaw;
  static constexpr int prefilled = 0, per_out = 1;
  static constexpr bool in_place = false;
  template <Dtype>
  using Out = int64_t;

  template <class Lanes, Dtype dtype, class Draws>
  static LDPK_FN void group(const typename Element<dtype>::Bits* in, int64_t* out, const Draws&, const Law& law) {
    for (int i = 0; i < kGroup<Lanes>; i += Lanes::count) {
      Lanes::store_threshold(out + i, TwoPoint<Lanes>::threshold(Element<dtype>::template load<Lanes>(in + i), law));
    }
  }
};

}  // namespace ldpk
