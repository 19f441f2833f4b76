// SPDX-License-Identifier: Apache-2.0
// Mechanisms that report a cell, on the CPU: values in place, bytes, and the places to which a weight turns the circle.
#pragma once

#include "skeleton.h"

namespace ldpk {

// Keystream 0 has the high halves of the draws, keystream 1 the low ones.
template <class Lanes, class Mechanism, Dtype dtype, class Draws, class Law>
LDPK_FN typename Lanes::u32 cell_of(const BitsOf<dtype>* in, const Draws& draws, const Law& law) {
  const auto k = Mechanism::turn(Element<dtype>::template load<Lanes>(in), Mechanism::circle(law));
  return Mechanism::cell(k, Lanes::load_draws(draws.streams[0], draws.streams[1]), law);
}

template <template <class> class Mechanism, Output output>
struct CellAction;

template <template <class> class Mechanism>
struct CellAction<Mechanism, Output::values> {
  using Law = typename Mechanism<ScalarLanes>::Law;
  static constexpr int prefilled = 2, per_out = 1;
  static constexpr bool in_place = true;
  template <Dtype dtype>
  using Out = BitsOf<dtype>;

  template <class Lanes, Dtype dtype, class Draws>
  static LDPK_FN void group(const Out<dtype>* in, Out<dtype>* out, const Draws& draws, const Law& law) {
    const double lowest = Mechanism<Lanes>::circle(law).lowest, step = Mechanism<Lanes>::circle(law).step;
#pragma GCC unroll 8
    for (int i = 0; i < kGroup<Lanes>; i += Lanes::count) {
      const auto cell = cell_of<Lanes, Mechanism<Lanes>, dtype>(in + i, draws.at(i), law);
      if constexpr (dtype == Dtype::f32) Lanes::store_affine(reinterpret_cast<float*>(out + i), cell, lowest, step);
      if constexpr (dtype == Dtype::f64) Lanes::store_affine(reinterpret_cast<double*>(out + i), cell, lowest, step);
      if constexpr (dtype == Dtype::bf16) Lanes::store_affine_bf16(out + i, cell, lowest, step);
      if constexpr (dtype == Dtype::f16) Lanes::store_affine_f16(out + i, cell, lowest, step);
    }
  }
};

template <template <class> class Mechanism>
struct CellAction<Mechanism, Output::cells> {
  using Law = typename Mechanism<ScalarLanes>::Law;
  static constexpr int prefilled = 2, per_out = 1;
  static constexpr bool in_place = false;
  template <Dtype>
  using Out = uint8_t;

  template <class Lanes, Dtype dtype, class Draws>
  static LDPK_FN void group(const BitsOf<dtype>* in, uint8_t* out, const Draws& draws, const Law& law) {
#pragma GCC unroll 8
    for (int i = 0; i < kGroup<Lanes>; i += Lanes::count) {
      Lanes::store_bytes(out + i, cell_of<Lanes, Mechanism<Lanes>, dtype>(in + i, draws.at(i), law));
    }
  }
};

template <template <class> class Mechanism>
struct CellAction<Mechanism, Output::turns> {
  using Law = typename Mechanism<ScalarLanes>::Law;
  static constexpr int prefilled = 0, per_out = 1;
  static constexpr bool in_place = false;
  template <Dtype>
  using Out = int64_t;

  template <class Lanes, Dtype dtype, class Draws>
  static LDPK_FN void group(const BitsOf<dtype>* in, int64_t* out, const Draws&, const Law& law) {
    const auto& circle = Mechanism<Lanes>::circle(law);
    for (int i = 0; i < kGroup<Lanes>; i += Lanes::count) {
      const auto k = Mechanism<Lanes>::turn(Element<dtype>::template load<Lanes>(in + i), circle);
      const auto origin = Lanes::broadcast_u32(static_cast<uint32_t>(circle.origin));
      Lanes::store_integers(out + i, Lanes::as_unsigned(k) + origin);
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
