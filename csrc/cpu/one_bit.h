// SPDX-License-Identifier: Apache-2.0
// Mechanisms that report one bit, on the CPU: values in place, bits, thresholds.
#pragma once

#include "skeleton.h"

namespace ldpk {

// Keystream 0 has the high halves of the draws, keystream 1 the low ones.
template <class Lanes, class Mechanism, Dtype dtype, class Draws, class Law>
LDPK_FN typename Lanes::Mask upper_of(const BitsOf<dtype>* in, const Draws& draws, const Law& law) {
  const auto k = Mechanism::threshold(Element<dtype>::template load<Lanes>(in), law);
  return is_upper<Lanes>(k, draws[0], [&] { return draws.rare(1) & 0xffff; });
}

template <template <class> class Mechanism, Output output>
struct OneBitAction;

template <template <class> class Mechanism>
struct OneBitAction<Mechanism, Output::values> {
  using Law = typename Mechanism<ScalarLanes>::Law;
  static constexpr int prefilled = 1, per_out = 1;
  static constexpr bool in_place = true;
  template <Dtype dtype>
  using Out = BitsOf<dtype>;

  template <class Lanes, Dtype dtype, class Draws>
  static LDPK_FN void group(const Out<dtype>* in, Out<dtype>* out, const Draws& draws, const Law& law) {
    const auto lower = static_cast<Out<dtype>>(law.lower), upper = static_cast<Out<dtype>>(law.upper);
#pragma GCC unroll 8
    for (int i = 0; i < kGroup<Lanes>; i += Lanes::count) {
      Lanes::store_choice(out + i, upper_of<Lanes, Mechanism<Lanes>, dtype>(in + i, draws.at(i), law), lower, upper);
    }
  }
};

template <template <class> class Mechanism>
struct OneBitAction<Mechanism, Output::bits> {
  using Law = typename Mechanism<ScalarLanes>::Law;
  static constexpr int prefilled = 1, per_out = 8;
  static constexpr bool in_place = false;
  template <Dtype>
  using Out = uint8_t;

  template <class Lanes, Dtype dtype, class Draws>
  static LDPK_FN void group(const BitsOf<dtype>* in, uint8_t* out, const Draws& draws, const Law& law) {
    uint32_t bits = 0;
#pragma GCC unroll 8
    for (int i = 0; i < kGroup<Lanes>; i += Lanes::count) {
      bits |= Lanes::bits(upper_of<Lanes, Mechanism<Lanes>, dtype>(in + i, draws.at(i), law)) << i;
    }
    memcpy(out, &bits, kGroup<Lanes> / 8);
  }
};

template <template <class> class Mechanism>
struct OneBitAction<Mechanism, Output::thresholds> {
  using Law = typename Mechanism<ScalarLanes>::Law;
  static constexpr int prefilled = 0, per_out = 1;
  static constexpr bool in_place = false;
  template <Dtype>
  using Out = int64_t;

  template <class Lanes, Dtype dtype, class Draws>
  static LDPK_FN void group(const BitsOf<dtype>* in, int64_t* out, const Draws&, const Law& law) {
    for (int i = 0; i < kGroup<Lanes>; i += Lanes::count) {
      Lanes::store_threshold(out + i, Mechanism<Lanes>::threshold(Element<dtype>::template load<Lanes>(in + i), law));
    }
  }
};

template <template <class> class Mechanism>
struct OnCpu<OneBit<Mechanism>> {
  using Law = typename OneBit<Mechanism>::Law;

  template <class Lanes, Output output>
  static void run(const Span& span, const Law& law, const Key& key, int64_t begin, int64_t end, Shared* shared) {
    run_action<Lanes, OneBitAction<Mechanism, output>>(span, law, key, begin, end, shared);
  }
};

}  // namespace ldpk
