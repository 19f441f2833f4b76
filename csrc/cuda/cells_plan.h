// SPDX-License-Identifier: Apache-2.0
// The laws of cells as a plan carries them: 32-bit numbers, with what a kernel need not do for every weight done once.
#pragma once

#include <stdexcept>

#include "../mechanisms/hybrid.h"
#include "plan.h"

namespace ldpk {

// PiecewiseLaw. Its sums and products are modulo 2^32, so that (u - a) << s is u * 2^s - a * 2^s.
struct PlannedPiecewise {
  double center, slope, lowest, step;
  float floor, ceiling;  // the ends of k as numbers of fp32, ScalarLanes::round_within's
  int32_t k_lo, k_hi;
  uint32_t band_draws, band_scale, rest_scale;
  uint32_t rest_factor, rest_offset;  // of a draw behind the band
  uint32_t band_start, rest_start;    // where a weight at the center turns the two
  uint32_t places, cell_factor;       // of the circle; a place times the factor is its cell times 2^32

  PlannedPiecewise() = default;
  explicit PlannedPiecewise(const PiecewiseLaw& law)
      : center(law.center),
        slope(law.slope),
        lowest(law.lowest),
        step(law.step),
        floor(float_at_least(static_cast<int32_t>(law.k_lo))),
        ceiling(float_at_most(static_cast<int32_t>(law.k_hi))),
        k_lo(static_cast<int32_t>(law.k_lo)),
        k_hi(static_cast<int32_t>(law.k_hi)),
        band_draws(static_cast<uint32_t>(law.band_draws)),
        band_scale(static_cast<uint32_t>(law.band_scale)),
        rest_scale(static_cast<uint32_t>(law.rest_scale)),
        rest_factor(1u << law.rest_shift),
        rest_offset(0u - band_draws * rest_factor),
        band_start(static_cast<uint32_t>(law.origin)),
        rest_start(static_cast<uint32_t>(law.origin + law.band_end)),
        places(static_cast<uint32_t>(law.places)),
        cell_factor(1u << (32 - law.cell_bits)) {
    if (law.fallback != law.center || law.k_lo > 0 || law.k_hi < 0)  // CellsLaw::turn relies on it
      throw std::invalid_argument("a NaN is taken for the center, which turns nothing");
  }
};

// HybridLaw.
struct PlannedHybrid : PlannedPiecewise {
  uint32_t last_draw;
  uint32_t coin_factor, coin_offset, coin_scale;
  uint32_t coin_start;  // the first draw that is no "upper" at k_lo
  uint32_t lower_cell, upper_cell;

  PlannedHybrid() = default;
  explicit PlannedHybrid(const HybridLaw& law)
      : PlannedPiecewise(law.piecewise),
        last_draw(static_cast<uint32_t>(law.last_draw)),
        coin_factor(1u << law.coin_shift),
        coin_offset(0u - static_cast<uint32_t>(k_lo) * coin_factor),
        coin_scale(static_cast<uint32_t>(law.coin_scale)),
        coin_start(static_cast<uint32_t>(law.last_draw + 1 + law.coin_lowest)),
        lower_cell(static_cast<uint32_t>(law.lower_cell)),
        upper_cell(static_cast<uint32_t>(law.upper_cell)) {}
};

template <>
struct DeviceLaw<PiecewiseLaw> {
  using Planned = PlannedPiecewise;
};
template <>
struct DeviceLaw<HybridLaw> {
  using Planned = PlannedHybrid;
};

constexpr int kFewCells = 24;  // spans
constexpr int kManyCells = 192;
static_assert(sizeof(ChunkedPlan<PlannedHybrid, kFewCells>) <= kShortPlan);
static_assert(sizeof(ChunkedPlan<PlannedHybrid, kManyCells>) <= kLargestPlan);

}  // namespace ldpk
