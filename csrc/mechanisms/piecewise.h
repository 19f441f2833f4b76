// SPDX-License-Identifier: Apache-2.0
// The piecewise mechanism (Wang et al., ICDE 2019) on a circle of cells. docs/mechanisms/piecewise.md.
//
// A draw becomes a place on the circle, by one multiplication: the first `band_draws` draws fill the first places, the
// band, the others the rest. The weight turns the circle by an integer in [0, turn], and the report is the cell where
// the draw then lies. Privacy is the host's choice of the scales: it counts how many of the 2^32 draws an interval of
// one cell's length can have, wherever it lies, so it holds for every turn and for every bit pattern of a weight.
#pragma once

#include "../lanes.h"

namespace ldpk {

struct PiecewiseLaw {
  double center;    // x = center turns the circle by `origin`
  double slope;     // > 0; places a unit of weight
  double fallback;  // what a NaN weight is taken for
  int64_t k_lo;
  int64_t k_hi;
  int64_t origin;      // 0 <= origin + k_lo, origin + k_hi <= turn < 2^31
  int64_t band_draws;  // draws below this are in the band
  int64_t band_scale;  // places a draw, times 2^32: each below 2^32
  int64_t rest_scale;  // places of a draw shifted by rest_shift, times 2^32
  int64_t rest_shift;
  int64_t band_end;   // the first place behind the band
  int64_t places;     // of the circle, at most 2^31
  int64_t cell_bits;  // a cell has 2^cell_bits places
  double lowest;      // cell 0 as a number of the tensor's dtype
  double step;        // from cell to cell: every sum is a number of the dtype
};

template <class Lanes>
struct Piecewise {
  using Law = PiecewiseLaw;
  using i32 = typename Lanes::i32;
  using u32 = typename Lanes::u32;

  static LDPK_FN const PiecewiseLaw& circle(const PiecewiseLaw& law) { return law; }

  // How far the weight turns the circle from `origin`, in [k_lo, k_hi]: the two-point mechanism's arithmetic.
  template <class Float>
  static LDPK_FN i32 turn(Float x, const Law& law) {
    x = Lanes::replace_nan(x, law.fallback);
    const Float z = (x - Lanes::broadcast(x, law.center)) * Lanes::broadcast(x, law.slope);
    return Lanes::round_within(z, static_cast<int32_t>(law.k_lo), static_cast<int32_t>(law.k_hi));
  }

  static LDPK_FN u32 cell(i32 k, u32 draw, const Law& law) {
    // A draw below band_draws wraps to a larger number when they are taken off.
    const u32 beyond = draw - scalar(law.band_draws), least = Lanes::smaller(draw, beyond);
    const auto in_band = Lanes::equal(least, draw);
    u32 within = least;
    if (law.rest_shift != 0) within = Lanes::select(in_band, draw, beyond << scalar(law.rest_shift));
    const u32 scale = Lanes::select(in_band, scalar(law.band_scale), scalar(law.rest_scale));
    const u32 start = Lanes::select(in_band, scalar(law.origin), scalar(law.origin + law.band_end));
    const u32 place = start + Lanes::multiply_high(within, scale) + Lanes::as_unsigned(k);
    // Once around at most: what is below the circle's length wraps to a larger number when the length is taken off.
    return Lanes::smaller(place, place - scalar(law.places)) >> scalar(law.cell_bits);
  }

  static LDPK_FN u32 scalar(int64_t v) { return Lanes::broadcast_u32(static_cast<uint32_t>(v)); }
};

}  // namespace ldpk
