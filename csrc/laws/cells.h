// SPDX-License-Identifier: Apache-2.0
// Where the cells of a circle lie among the weights, as ldpkernels/laws/piecewise_cells.py and hybrid.py have it: the
// same steps in the same order. The circles themselves are Python's, which proves each once.
#pragma once

#include <functional>
#include <numeric>
#include <optional>
#include <vector>

#include "../mechanisms/hybrid.h"
#include "format.h"

namespace ldpk {

constexpr int64_t kByteCells = 256;    // of a report
constexpr int64_t kValueCells = 1023;  // of values, where the dtype has so many

// ldpkernels/laws/piecewise_circle.py's Circle, and two fractions of it.
struct Circle {
  int64_t cells, band, cell_bits, draws, band_draws, band_scale, rest_scale, rest_shift;
  int64_t gain_over, gain_under;  // how far the expected report moves when the circle turns by one cell
  int64_t half_over, half_under;  // half of what it moves when the circle turns all the way

  Circle(int64_t cells, int64_t band, int64_t cell_bits, int64_t draws, int64_t band_draws, int64_t band_scale,
         int64_t rest_scale, int64_t rest_shift)
      : cells(cells),
        band(band),
        cell_bits(cell_bits),
        draws(draws),
        band_draws(band_draws),
        band_scale(band_scale),
        rest_scale(rest_scale),
        rest_shift(rest_shift) {
    const int64_t spread = band_draws * cells - band * draws, width = (cells - band) * draws;
    if (spread <= 0) throw Declined{};
    const int64_t common = std::gcd(spread, width), common_half = std::gcd(spread, 2 * draws);
    gain_over = spread / common, gain_under = width / common;
    half_over = spread / common_half, half_under = 2 * draws / common_half;
  }
  int64_t turn() const { return (cells - band) << cell_bits; }
};

// The circles of one mechanism at one eps, by the number of their cells, and a rational just below e^eps.
class Circles {
 public:
  Circles(std::function<Circle(int64_t)> prove, Wide bound_over, Wide bound_under)
      : bound_over(bound_over), bound_under(bound_under), prove_(std::move(prove)), known_(kValueCells + 1) {}

  const Circle& of(int64_t cells) const {
    if (!known_[cells]) known_[cells] = prove_(cells);
    return *known_[cells];
  }
  // Whether low and high of so many draws differ by e^eps at most, and so do the others.
  bool odds_below(const Wide& low, const Wide& high, int64_t draws) const {
    return high * bound_under <= low * bound_over &&
           (Wide(draws) - low) * bound_under <= (Wide(draws) - high) * bound_over;
  }

  const Wide bound_over, bound_under;

 private:
  std::function<Circle(int64_t)> prove_;
  mutable std::vector<std::optional<Circle>> known_;
};

// The hybrid mechanism's other draws.
struct Coin {
  int64_t lowest = 0, shift = 0, scale = 0, lower = 0, upper = 0;
};

// A circle and where it lies; lengths are in units of 2^exponent / per. Cell y is the number lowest + step * y.
struct PlacedCells {
  const Circle* circle;
  Wide center, radius, lowest, step;
  int64_t exponent;
  Wide per;
  double slope;
  int64_t origin, k_lo, k_hi;

  // Every turn that a kernel can make is one for which the circle's counts were proved.
  void check() const {
    if (origin + k_lo < 0 || origin + k_hi > circle->turn() || k_lo > k_hi) throw Declined{};
  }
  PiecewiseLaw law(double c) const {
    const int64_t folded = circle->rest_scale << circle->rest_shift;
    const bool fold = folded < kDraws;  // the same products, without a shift
    return {c,
            slope,
            c,
            k_lo,
            k_hi,
            origin,
            circle->band_draws,
            circle->band_scale,
            fold ? folded : circle->rest_scale,
            fold ? 0 : circle->rest_shift,
            circle->band << circle->cell_bits,
            circle->cells << circle->cell_bits,
            circle->cell_bits,
            nearest_double(lowest, per, exponent),
            nearest_double(step, per, exponent)};
  }
};

// Of a report: the middle of the circle is c, and the ends of the range turn it to its ends.
inline PlacedCells report_cells(const ExecutedRange& range, const Format& compute, const Circle& circle) {
  const Wide per = 2 * circle.half_over, center = range.center * per, radius = range.radius * per;
  const Wide step = range.radius * (2 * circle.half_under);
  const Wide lowest = center - range.radius * circle.half_under * (circle.cells - 1);
  for (const Wide& reach : {center, center - lowest}) {  // half of the largest number, at most; Python looks closer
    if (reach && reach.bit_length() - per.bit_length() + range.unit >= compute.max_exponent - 4) throw Declined{};
  }
  const int64_t half = range.radius ? circle.turn() / 2 : 0;
  const double slope = range.radius ? ceil_at(compute, half, range.radius, -range.unit) : 1.0;
  return {&circle, center, radius, lowest, step, range.unit, per, slope, circle.turn() / 2, -half, half};
}

// A range and the spacing of outputs in units of 2^exponent.
struct Grid {
  Wide center, radius, unit;  // the unit is even
  int64_t exponent;

  Grid(const ExecutedRange& range, int64_t unit_exponent) : exponent(std::min(range.unit, unit_exponent - 1)) {
    center = range.center << (range.unit - exponent), radius = range.radius << (range.unit - exponent);
    unit = Wide(1) << (unit_exponent - exponent);
  }
  Wide rounded(const Wide& n) const { return nearest(n, unit) * unit; }
};

inline Wide halved(const Wide& even) { return floor_of(even, 2); }

// A circle, and the multiple of the unit that a cell of it spans.
inline std::pair<const Circle*, Wide> fitting(const Grid& grid, const Format& compute, const Circles& circles) {
  const Circle& fine = circles.of(kValueCells);
  if (!grid.radius && grid.rounded(grid.center) == grid.center) return {&fine, 0};
  Wide multiple = ceil_of((grid.radius + halved(grid.unit)) * fine.half_under, grid.unit * fine.half_over);
  if (multiple * (fine.cells - 1) > (Wide(1) << compute.precision) && is_odd(multiple)) {
    multiple = multiple + 1;  // the kernel's products stay exact
  }
  if (multiple > Wide(64)) return {&fine, multiple};
  const Wide step = multiple * grid.unit, half_step = halved(step);
  // A number of cells from which to look for the first that suffices.
  const Wide needed = floor_of(grid.radius * fine.half_under * (fine.cells * 9), step * fine.half_over * 10) - 2;
  for (int64_t cells = std::max(Wide(2), std::min(needed, Wide(fine.cells))).to_int64(); cells < fine.cells; ++cells) {
    const Circle& circle = circles.of(cells);
    const Wide wide = step * circle.half_over;
    if (wide < grid.radius * circle.half_under) continue;
    const Wide span = half_step * (cells - 1), middle = grid.rounded(grid.center - span) + span;
    if (wide >= (grid.radius + (grid.center - middle).abs()) * circle.half_under) return {&circle, multiple};
  }
  return {&fine, multiple};
}

inline PlacedCells placed(const Circle& circle, const Wide& lowest, const Wide& step, const Grid& grid,
                          const Format& compute) {
  PlacedCells out{&circle, grid.center, grid.radius, lowest, step, grid.exponent, 1, 1.0, circle.turn() / 2, 0, 0};
  if (!step) return out;
  // a place of the circle is `width` / `size` units
  const Wide size = Wide(circle.gain_under) << circle.cell_bits, width = step * circle.gain_over;
  const Wide middle = lowest + halved(step) * (circle.cells - 1);
  const Wide twice = width * 2;
  out.origin = nearest((grid.center - middle) * size * 2 + width * circle.turn(), twice).to_int64();
  const int64_t half = nearest(grid.radius * size, width).to_int64();
  out.k_lo = std::max(-out.origin, -half), out.k_hi = std::min(circle.turn() - out.origin, half);
  if (compute.exceeded(size, width, -grid.exponent)) throw Declined{};
  out.slope = ceil_at(compute, size, width, -grid.exponent);
  return out;
}

// Cells that are numbers of a format: evenly spaced, so that nothing is rounded, and wide enough to hold the range.
inline PlacedCells value_cells(const ExecutedRange& range, const Format& format, const Format& compute,
                               const Circles& circles) {
  const Circle& fine = circles.of(kValueCells);
  const Grid plain(range, 0);
  const Wide reach = plain.radius * (fine.cells - 1) * fine.half_under + plain.center.abs() * (2 * fine.half_over);
  const int64_t exponent = format.spacing_at(reach, 2 * fine.half_over, plain.exponent);
  for (int64_t unit_exponent = exponent; unit_exponent < exponent + 4; ++unit_exponent) {
    const Grid grid(range, unit_exponent);
    const auto [circle, multiple] = fitting(grid, compute, circles);
    const Wide step = multiple * grid.unit, span = step * (circle->cells - 1);
    const Wide lowest = grid.rounded(grid.center - halved(step) * (circle->cells - 1));
    const Wide largest = std::max(-lowest, lowest + span);
    if (format.exceeded(largest, 1, grid.exponent)) break;
    if (largest <= grid.unit << format.precision) return placed(*circle, lowest, step, grid, compute);
  }
  throw Declined{};
}

// The two-point mechanism between the cells next to its own two values, with its thresholds rounded inwards.
inline std::optional<Coin> coin_of(const PlacedCells& cells, const Circles& circles) {
  if (!cells.step) return std::nullopt;
  const int64_t draws = kDraws - cells.circle->draws;
  // its values are (e^eps + 1) / (e^eps - 1) radii from the center
  const Wide over = circles.bound_over + circles.bound_under, under = circles.bound_over - circles.bound_under;
  const Wide middle = (cells.center - cells.lowest) * under, far = cells.radius * over, of = cells.step * under;
  const int64_t lower = std::max(Wide(0), floor_of(middle - far, of)).to_int64();
  const int64_t upper = std::min(Wide(cells.circle->cells - 1), ceil_of(middle + far, of)).to_int64();
  if (lower >= upper) return std::nullopt;
  const Wide apart = cells.step * (upper - lower), above = cells.center - cells.lowest - cells.step * lower;
  const Wide low = ceil_of((above - cells.radius) * draws, apart);
  const Wide high = floor_of((above + cells.radius) * draws, apart);
  if (!(Wide(0) < low && low <= high && high < Wide(draws)) || !circles.odds_below(low, high, draws)) {
    return std::nullopt;
  }
  const int64_t span = cells.k_hi - cells.k_lo;
  const int64_t shift = span == 0 ? 0 : 32 - Wide(span).bit_length();
  const int64_t scale = span == 0 ? 0 : floor_of((high - low) << 32, Wide(span) << shift).to_int64();
  // what is executed at k_hi, not above `high`
  const Wide executed = low + floor_of((Wide(span) << shift) * scale, kDraws);
  if (!circles.odds_below(low, executed, draws)) throw Declined{};
  return Coin{low.to_int64(), shift, scale, lower, upper};
}

}  // namespace ldpk
