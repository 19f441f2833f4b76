// SPDX-License-Identifier: Apache-2.0
// Mechanisms that report a cell, on the CPU: values in place, bytes, and the places to which a weight turns the circle.
#pragma once

#include "../mechanisms/hybrid.h"
#include "skeleton.h"

namespace ldpk {

struct PiecewiseCells {
  using Law = PiecewiseLaw;
  template <class Lanes>
  using Mechanism = Piecewise<Lanes>;
  static LDPK_FN const PiecewiseLaw& circle(const Law& law) { return law; }
};

struct HybridCells {
  using Law = HybridLaw;
  template <class Lanes>
  using Mechanism = Hybrid<Lanes>;
  static LDPK_FN const PiecewiseLaw& circle(const Law& law) { return law.piecewise; }
};

// Keystream 0 has the high halves of the draws, keystream 1 the low ones.
template <class Lanes, class Cells, Dtype dtype, class Draws>
LDPK_FN typename Lanes::u32 cell_of(const typename Element<dtype>::Bits* in, const Draws& draws,
                                    const typename Cells::Law& law) {
  const auto k = Piecewise<Lanes>::turn(Element<dtype>::template load<Lanes>(in), Cells::circle(law));
  return Cells::template Mechanism<Lanes>::cell(k, Lanes::load_draws(draws.streams[0], draws.streams[1]), law);
}

template <class Cells>
struct CellValues {
  using Law = typename Cells::Law;
  static constexpr int prefilled = 2, per_out = 1;
  static constexpr bool in_place = true;
  template <Dtype dtype>
  using Out = typename Element<dtype>::Bits;

  template <class Lanes, Dtype dtype, class Draws>
  static LDPK_FN void group(const Out<dtype>* in, Out<dtype>* out, const Draws& draws, const Law& law) {
    const double lowest = Cells::circle(law).lowest, step = Cells::circle(law).step;
#pragma GCC unroll 8
    for (int i = 0; i < kGroup<Lanes>; i += Lanes::count) {
      const auto cell = cell_of<Lanes, Cells, dtype>(in + i, draws.at(i), law);
      if constexpr (dtype == Dtype::f32) Lanes::store_affine(reinterpret_cast<float*>(out + i), cell, lowest, step);
      if constexpr (dtype == Dtype::f64) Lanes::store_affine(reinterpret_cast<double*>(out + i), cell, lowest, step);
      if constexpr (dtype == Dtype::bf16) Lanes::store_affine_bf16(out + i, cell, lowest, step);
      if constexpr (dtype == Dtype::f16) Lanes::store_affine_f16(out + i, cell, lowest, step);
    }
  }
};

template <class Cells>
struct CellBytes {
  using Law = typename Cells::Law;
  static constexpr int prefilled = 2, per_out = 1;
  static constexpr bool in_place = false;
  template <Dtype>
  using Out = uint8_t;

  template <class Lanes, Dtype dtype, class Draws>
  static LDPK_FN void group(const typename Element<dtype>::Bits* in, uint8_t* out, const Draws& draws, const Law& law) {
#pragma GCC unroll 8
    for (int i = 0; i < kGroup<Lanes>; i += Lanes::count) {
      Lanes::store_bytes(out + i, cell_of<Lanes, Cells, dtype>(in + i, draws.at(i), law));
    }
  }
};

struct PiecewiseTurns {
  using Law = PiecewiseLaw;
  static constexpr int prefilled = 0, per_out = 1;
  static constexpr bool in_place = false;
  template <Dtype>
  using Out = int64_t;

  template <class Lanes, Dtype dtype, class Draws>
  static LDPK_FN void group(const typename Element<dtype>::Bits* in, int64_t* out, const Draws&, const Law& law) {
    using Mechanism = Piecewise<Lanes>;
    for (int i = 0; i < kGroup<Lanes>; i += Lanes::count) {
      const auto k = Mechanism::turn(Element<dtype>::template load<Lanes>(in + i), law);
      Lanes::store_integers(out + i, Lanes::as_unsigned(k) + Mechanism::scalar(law.origin));
    }
  }
};

}  // namespace ldpk
