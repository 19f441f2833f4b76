// SPDX-License-Identifier: Apache-2.0
// Mechanisms that report a cell, on the CPU: values in place, bytes, and the places to which a weight turns the circle.
#pragma once

#include "skeleton.h"

namespace ldpk {

// Keystream 0 has the high halves of the draws, keystream 1 the low ones.
template <template <class> class Mechanism, Output output>
struct CellAction {
  using Law = typename Mechanism<ScalarLanes>::Law;
  static constexpr bool in_place = output == Output::values;
  static constexpr int prefilled = output == Output::turns ? 0 : 2, per_out = 1;
  template <class Lanes>
  static constexpr int kGroup = group_of(Lanes::count);
  template <Dtype dtype>
  using Out = std::conditional_t<in_place, BitsOf<dtype>, std::conditional_t<prefilled == 2, uint8_t, int64_t>>;

  template <class Lanes, Dtype dtype, class Draws>
  static LDPK_FN void group(const BitsOf<dtype>* in, Out<dtype>* out, const Draws& draws, const Law& law) {
    const auto& circle = Mechanism<Lanes>::circle(law);
#pragma GCC unroll 8
    for (int i = 0; i < kGroup<Lanes>; i += Lanes::count) {
      const auto k = Mechanism<Lanes>::turn(Element<dtype>::template load<Lanes>(in + i), circle);
      if constexpr (output == Output::turns) {
        const auto origin = Lanes::broadcast_u32(static_cast<uint32_t>(circle.origin));
        Lanes::store_integers(out + i, Lanes::as_unsigned(k) + origin);
      } else {
        const auto [high, low] = draws.at(i).streams;
        const auto cell = Mechanism<Lanes>::cell(k, Lanes::load_draws(high, low), law);
        if constexpr (output == Output::cells) Lanes::store_bytes(out + i, cell);
        if constexpr (output == Output::values) store<Lanes, dtype>(out + i, cell, circle.lowest, circle.step);
      }
    }
  }

 private:
  template <class Lanes, Dtype dtype>
  static LDPK_FN void store(BitsOf<dtype>* out, typename Lanes::u32 cell, double lowest, double step) {
    if constexpr (dtype == Dtype::bf16) {
      Lanes::store_affine_bf16(out, cell, lowest, step);
    } else if constexpr (dtype == Dtype::f16) {
      Lanes::store_affine_f16(out, cell, lowest, step);
    } else {
      Lanes::store_affine(reinterpret_cast<FloatOf<dtype>*>(out), cell, lowest, step);
    }
  }
};

template <template <class> class Mechanism>
struct OnCpu<Cells<Mechanism>> {
  using Law = typename Cells<Mechanism>::Law;

  template <class Lanes, Output output>
  static void run(const Span& span, const Law& law, const Key& key, int64_t begin, int64_t end, Shared* shared) {
    run_action<Lanes, CellAction<Mechanism, output>>(span, law, key, begin, end, shared);
  }
};

}  // namespace ldpk
