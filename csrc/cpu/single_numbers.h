// SPDX-License-Identifier: Apache-2.0
// Clipped sums of single numbers, as losses are: a sample of one number has neither norm nor scale, and clipping it is
// clamping. docs/mechanisms/clipped_noise.md, "Single numbers".
#pragma once

#include <cmath>
#include <limits>
#include <type_traits>

#include "clipped_noise.h"

namespace ldpk {

// Numbers of a register; 16 bytes where there are no lanes.
template <class Lanes, class Float>
constexpr int width_of = (Lanes::count > 4 ? Lanes::count : 4) * 4 / sizeof(Float);

// `clamped` for a register. Magnitudes of IEEE numbers are in the order of their bits, so that this takes integers
// alone, whose comparisons compilers keep in registers.
template <int width, class Float>
LDPK_FN auto clamped_numbers(const Float* x, Float bound) {
  using Int = std::conditional_t<sizeof(Float) == 8, int64_t, int32_t>;
  using Ints = typename Vector<Int, width>::type;
  constexpr Int sign = std::numeric_limits<Int>::min();
  Ints bits;
  memcpy(&bits, x, sizeof(bits));
  const Ints magnitude = bits & ~sign, bounds = Ints{} + bit_cast<Int>(bound);
  const Ints kept = (magnitude < bounds ? magnitude : bounds) | (bits & sign);
  const Ints finite = magnitude < bit_cast<Int>(std::numeric_limits<Float>::infinity());
  return (typename Vector<Float, width>::type)(kept & finite);
}

// The sum of a piece. Number i goes to lane i mod 64, in order; then lanes l and l + 32 are added, l + 16, ..., l + 1.
// The lanes of eight registers are added at a time.
template <class Lanes, class Float>
LDPK_FN Float sum_of_piece(const Float* x, Float bound) {
  constexpr int width = width_of<Lanes, Float>;
  constexpr int together = kNumberLanes / width < 8 ? kNumberLanes / width : 8;
  using Floats = typename Vector<Float, width>::type;
  alignas(64) Float lanes[kNumberLanes];
  for (int first = 0; first < kNumberLanes; first += together * width) {
    Floats sums[together] = {};
    for (int64_t i = first; i < kPiece; i += kNumberLanes) {
#pragma GCC unroll 8
      for (int r = 0; r < together; ++r) sums[r] += clamped_numbers<width>(x + i + r * width, bound);
    }
    memcpy(lanes + first, sums, sizeof(sums));
  }
#pragma GCC unroll 8
  for (int half = kNumberLanes / 2; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}

// The same in units, cut towards zero to integers below 2^52, whose sums below 2^53 are exact in any order. Written
// out, as compilers cut one number at a time.
template <class Lanes, class Float>
LDPK_FN double units_of_piece(const Float* x, Float bound, double inverse_unit) {
  constexpr int width = width_of<Lanes, double>, together = 4;
  using Doubles = typename Vector<double, width>::type;
  using Longs = typename Vector<int64_t, width>::type;
  constexpr auto sign = std::numeric_limits<int64_t>::min();
  alignas(64) Float kept[kPiece];
  alignas(64) double units[kPiece];
  for (int64_t i = 0; i < kPiece; i += width_of<Lanes, Float>) {
    const auto numbers = clamped_numbers<width_of<Lanes, Float>>(x + i, bound);
    memcpy(kept + i, &numbers, sizeof(numbers));
  }
  for (int64_t i = 0; i < kPiece; ++i) units[i] = static_cast<double>(kept[i]) * inverse_unit;
  Doubles sums[together] = {};
  for (int64_t i = 0; i < kPiece; i += together * width) {
#pragma GCC unroll 4
    for (int r = 0; r < together; ++r) {
      Longs bits;
      memcpy(&bits, units + i + r * width, sizeof(bits));
      const Doubles magnitude = (Doubles)(bits & ~sign);
      const Doubles nearest = (magnitude + 0x1p52) - 0x1p52;
      const Longs too_much = (nearest > magnitude) & bit_cast<int64_t>(1.0);
      sums[r] += (Doubles)((Longs)(nearest - (Doubles)too_much) | (bits & sign));
    }
  }
  sums[0] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  double total = 0;
  for (int l = 0; l < width; ++l) total += sums[0][l];
  return total;
}

// total[0] = the sum of the numbers [row, row_end), which begin a piece: pieces in fp64, in order. norms[i] = |x_i|.
template <class Lanes, Dtype dtype>
void number_range(const Span& span, double limit, double unit, int64_t row, int64_t row_end, double* norms,
                  double* total) {
  using Float = FloatOf<dtype>;
  const auto* data = reinterpret_cast<const BitsOf<dtype>*>(span.data);
  const Float bound = at_most(Float{}, limit);
  alignas(64) Float buffer[kPiece];
  double sum = 0;
  for (; row < row_end; row += kPiece) {
    const int64_t n = row_end - row < kPiece ? row_end - row : kPiece;
    const Float* x = widened<Lanes, dtype>(data + row, n, buffer);
    if (norms) {
      for (int64_t i = 0; i < n; ++i) norms[row + i] = std::fabs(static_cast<double>(x[i]));
    }
    if (n < kPiece) {  // zeros add nothing
      if (x != buffer) memcpy(buffer, x, n * sizeof(Float));
      memset(buffer + n, 0, (kPiece - n) * sizeof(Float));
      x = buffer;
    }
    sum += unit > 0 ? units_of_piece<Lanes>(x, bound, 1 / unit) : sum_of_piece<Lanes>(x, bound);
  }
  total[0] = sum;
}

}  // namespace ldpk
