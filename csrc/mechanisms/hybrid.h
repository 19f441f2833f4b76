// SPDX-License-Identifier: Apache-2.0
// The hybrid mechanism (Wang et al., ICDE 2019): piecewise for most draws, for the others a coin between two of its
// cells, which is the two-point mechanism. docs/mechanisms/hybrid.md.
#pragma once

#include "piecewise.h"

namespace ldpk {

struct HybridLaw {
  PiecewiseLaw piecewise;
  int64_t last_draw;    // the last draw that is piecewise's
  int64_t coin_lowest;  // how many of the other draws are "upper" at k_lo
  int64_t coin_shift;
  int64_t coin_scale;  // how many more with each k, times 2^(32 - coin_shift)
  int64_t lower_cell;
  int64_t upper_cell;
};

template <class Lanes>
struct Hybrid {
  using Law = HybridLaw;
  using i32 = typename Lanes::i32;
  using u32 = typename Lanes::u32;
  using Base = Piecewise<Lanes>;

  template <class Float>
  static LDPK_FN i32 turn(Float x, const PiecewiseLaw& law) {
    return Base::turn(x, law);
  }
  static LDPK_FN const PiecewiseLaw& circle(const HybridLaw& law) { return law.piecewise; }

  static LDPK_FN u32 cell(i32 k, u32 draw, const Law& law) {
    const u32 last = Base::scalar(law.last_draw);
    const u32 raised = (Lanes::as_unsigned(k) - Base::scalar(law.piecewise.k_lo)) << Base::scalar(law.coin_shift);
    const u32 upper = Base::scalar(law.coin_lowest) + Lanes::multiply_high(raised, Base::scalar(law.coin_scale));
    const auto is_upper = Lanes::less(draw - Base::scalar(law.last_draw + 1), upper);
    const u32 coin = Lanes::select(is_upper, Base::scalar(law.upper_cell), Base::scalar(law.lower_cell));
    return Lanes::select(Lanes::less(last, draw), coin, Base::cell(k, draw, law.piecewise));
  }
};

}  // namespace ldpk
