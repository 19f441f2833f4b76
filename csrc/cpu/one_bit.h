// SPDX-License-Identifier: Apache-2.0
// Mechanisms that report one bit, on the CPU: values in place, bits, thresholds.
#pragma once

#include "skeleton.h"

namespace ldpk {

// Keystream 0 has the high halves of the draws, keystream 1 the low ones.
template <class Lanes, class Mechanism, Dtype dtype, class Draws, class Law>
LDPK_FN auto exactly_upper(const BitsOf<dtype>* in, const Draws& draws, const Law& law) {
  constexpr int n = Lanes::count, registers = Halves<Lanes>::count / n;
  typename Lanes::Mask upper[registers];
  for (int r = 0; r < registers; ++r) {
    const auto k = Mechanism::threshold(Element<dtype>::template load<Lanes>(in + r * n), law);
    const Draws own = draws.at(r * n);
    upper[r] = is_upper<Lanes>(k, own[0], [&] { return own.rare(1) & 0xffff; });
  }
  return Halves<Lanes>::joined(upper);
}

// The same. Upper halves decide alone, but for one draw in 2^16.
template <class Lanes, class Mechanism, Dtype dtype, class Draws, class Law>
LDPK_FN auto upper_of(const BitsOf<dtype>* in, const Draws& draws, const Law& law) {
  constexpr int n = Lanes::count, registers = Halves<Lanes>::count / n;
  constexpr bool can_be_near = requires { Mechanism::has_near(law); };
  typename Lanes::i32 k[registers];
#pragma GCC unroll 2
  for (int r = 0; r < registers; ++r) {
    const auto x = Element<dtype>::template load<Lanes>(in + r * n);
    if constexpr (can_be_near) k[r] = Mechanism::near(x, law);
    if constexpr (!can_be_near) k[r] = Mechanism::threshold(x, law);
  }
  const auto high = Halves<Lanes>::upper(k), drawn = Halves<Lanes>::load(draws.streams[0]);
  bool open = Lanes::any(Lanes::equal(drawn, high));
  if constexpr (can_be_near) open = open || !Mechanism::has_near(law);
  if (open) [[unlikely]]
    return exactly_upper<Lanes, Mechanism, dtype>(in, draws, law);
  return Lanes::less(drawn, high);
}

template <template <class> class Mechanism, Output output>
struct OneBitAction {
  using Law = typename Mechanism<ScalarLanes>::Law;
  static constexpr bool in_place = output == Output::values;
  static constexpr int prefilled = output == Output::thresholds ? 0 : 1, per_out = output == Output::bits ? 8 : 1;
  template <class Lanes>
  static constexpr int kGroup = group_of(Halves<Lanes>::count);
  template <Dtype dtype>
  using Out = std::conditional_t<in_place, BitsOf<dtype>, std::conditional_t<per_out == 8, uint8_t, int64_t>>;

  template <class Lanes, Dtype dtype, class Draws>
  static LDPK_FN void group(const BitsOf<dtype>* in, Out<dtype>* out, const Draws& draws, const Law& law) {
    [[maybe_unused]] const auto lower = static_cast<BitsOf<dtype>>(law.lower);
    [[maybe_unused]] const auto upper = static_cast<BitsOf<dtype>>(law.upper);
    [[maybe_unused]] uint32_t bits = 0;
    constexpr int step = output == Output::thresholds ? Lanes::count : Halves<Lanes>::count;
#pragma GCC unroll 8
    for (int i = 0; i < kGroup<Lanes>; i += step) {
      if constexpr (output == Output::values) {
        Lanes::store_choice(out + i, upper_of<Lanes, Mechanism<Lanes>, dtype>(in + i, draws.at(i), law), lower, upper);
      } else if constexpr (output == Output::bits) {
        bits |= Lanes::bits(upper_of<Lanes, Mechanism<Lanes>, dtype>(in + i, draws.at(i), law)) << i;
      } else {
        const auto x = Element<dtype>::template load<Lanes>(in + i);
        const auto half = Lanes::broadcast_u32(1u << 31);  // of all draws: T = 2^31 + k
        Lanes::store_integers(out + i, Lanes::as_unsigned(Mechanism<Lanes>::threshold(x, law)) + half);
      }
    }
    if constexpr (output == Output::bits) memcpy(out, &bits, kGroup<Lanes> / 8);
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
