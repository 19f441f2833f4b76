// SPDX-License-Identifier: Apache-2.0
// Clipped sums of a matrix of few columns: one pass from rows to sums, with rows across the lanes. The
// bits are those of clipped_noise.h, whose comments say in which order numbers are added.
#pragma once

#include <cmath>

#include "clipped_noise.h"
#include "single_numbers.h"

namespace ldpk {

constexpr int64_t kNarrowBlocks = 16;
constexpr int64_t kNarrowRows = kNarrowBlocks * kRowBlock;  // at a time
static_assert(kRowGroup % kNarrowRows == 0 && kNarrowColumns <= kSquareLanes && kRowBlock % 16 == 0);

// Sums of blocks of rows, which are added in order: 16 blocks at once.
template <class Lanes>
LDPK_FN void sums_of_blocks(const float* products, float* sums) {
  using u32 = typename Lanes::u32;
  alignas(64) uint32_t turned[Lanes::count * kNarrowBlocks];
  for (int64_t i = 0; i < kRowBlock; i += Lanes::count) {
    u32 rows[kNarrowBlocks];
    for (int b = 0; b < kNarrowBlocks; ++b) memcpy(&rows[b], products + b * kRowBlock + i, sizeof(u32));
    Lanes::store_blocks(turned, rows);
    for (int k = 0; k < Lanes::count; ++k) {
      for (int b = 0; b < kNarrowBlocks; ++b) sums[b] += bit_cast<float>(turned[k * kNarrowBlocks + b]);
    }
  }
}
template <class Lanes>
LDPK_FN void sums_of_blocks(const double* products, double* sums) {
  for (int64_t i = 0; i < kRowBlock; ++i) {
    for (int b = 0; b < kNarrowBlocks; ++b) sums[b] += products[b * kRowBlock + i];
  }
}

template <class Lanes, class Float>
LDPK_FN void add_blocks(const Float* products, double& total) {
  Float sums[kNarrowBlocks] = {};
  sums_of_blocks<Lanes>(products, sums);
  for (const Float sum : sums) total += sum;
}

// Whether row_scale is 1 for each of the rows that are read at a time.
LDPK_FN bool all_within(const double* norms, double bound) {
  for (int64_t block = 0; block < kNarrowRows; block += kRowBlock) {
    int64_t within = 0;
    for (int64_t i = block; i < block + kRowBlock; ++i) within += is_within(norms[i], bound);
    if (within < kRowBlock) return false;
  }
  return true;
}

// The sum of lanes j, j + step, ... of `width`, added as lanes of squares are: l and l + width / 2, then l and
// l + width / 4, and so on.
template <int step, int width, class Lane>
LDPK_FN double sum_of(const Lane& lane, int j) {
  if constexpr (step == width) {
    return lane(j);
  } else {
    return sum_of<2 * step, width>(lane, j) + sum_of<2 * step, width>(lane, j + step);
  }
}

// The norms of n rows, whose columns from the last on to `width` are zero: lanes of squares as in squares_of.
template <int width, class Float>
LDPK_FN void norms_of_rows(const Float (*x)[kNarrowRows], int64_t n, double* __restrict norms) {
  for (int64_t i = 0; i < n; ++i) {
    const auto square = [&](int j) { return static_cast<double>(x[j][i]) * static_cast<double>(x[j][i]); };
    norms[i] = sum_of<1, width>(square, 0);
  }
  for (int64_t i = 0; i < n; ++i) norms[i] = sqrt(norms[i]);
}

// What row_scale and at_most make of norms, up to whole registers. Written out, as compilers choose branches for what
// a row's norm decides.
template <class Lanes, class Float>
LDPK_FN void factors_of(const double* norms, double bound, int64_t n, Float* factors) {
  constexpr int width = Lanes::blocks > 1 ? Lanes::blocks : 2;
  using Doubles = typename Vector<double, width>::type;
  using Longs = typename Vector<int64_t, width>::type;
  using Floats = typename Vector<float, width>::type;
  using Ints = typename Vector<int32_t, width>::type;
  const Doubles bounds = Doubles{} + bound;
  for (int64_t i = 0; i < n; i += width) {
    Doubles norm;
    memcpy(&norm, norms + i, sizeof(norm));
    const Doubles above = norm * (1.0 + 0x1p-32);
    const Doubles quotient = bounds / (above <= bounds ? bounds : above);
    const Doubles scale = norm < static_cast<double>(INFINITY) ? quotient : Doubles{};
    if constexpr (sizeof(Float) == sizeof(double)) {
      memcpy(factors + i, &scale, sizeof(scale));
    } else if constexpr (requires { Lanes::store_below(factors, scale); }) {
      Lanes::store_below(factors + i, scale);
    } else {
      const Floats nearest = __builtin_convertvector(scale, Floats);
      const Longs too_much = __builtin_convertvector(nearest, Doubles) > scale;
      const Ints below = (Ints)nearest + __builtin_convertvector(too_much, Ints);
      memcpy(factors + i, &below, sizeof(below));
    }
  }
}

// total += factor[i] * x[i] over n rows, in one column. A row of factor 0 adds nothing, whatever it holds.
template <class Lanes, class Float>
LDPK_FN void add_column(const Float* __restrict x, const Float* __restrict factors, int64_t n, double& total) {
  constexpr int width = (Lanes::count > 4 ? Lanes::count : 4) * 4 / sizeof(Float);
  using Floats = typename Vector<Float, width>::type;
  alignas(64) Float products[kNarrowRows];
  int64_t i = 0;
  for (; i + width <= n; i += width) {
    Floats number, factor;
    memcpy(&number, x + i, sizeof(number));
    memcpy(&factor, factors + i, sizeof(factor));
    const Floats product = factor != 0 ? number * factor : Floats{};
    memcpy(products + i, &product, sizeof(product));
  }
  for (; i < n; ++i) products[i] = factors[i] != 0 ? x[i] * factors[i] : 0;
  for (; i < kNarrowRows; ++i) products[i] = 0;
  add_blocks<Lanes>(products, total);
}

// The same in units, a power of two, truncated to integers: in any order.
template <class Lanes, class Float>
LDPK_FN void add_integers(const Float* __restrict x, const double* __restrict scale, double unit, int64_t n,
                          double& total) {
  constexpr int width = 8;
  using Doubles = typename Vector<double, width>::type;
  alignas(64) double cut[kNarrowRows];
  for (int64_t i = 0; i < n; ++i) cut[i] = __builtin_trunc(x[i] * (scale[i] * (1 / unit)));
  Doubles sums = {};
  int64_t i = 0;
  for (; i + width <= n; i += width) {
    Doubles number, factor;
    memcpy(&number, cut + i, sizeof(number));
    memcpy(&factor, scale + i, sizeof(factor));
    sums += factor != 0 ? number : Doubles{};
  }
  for (; i < n; ++i) sums[0] += scale[i] != 0 ? cut[i] : 0;
  for (int l = 0; l < width; ++l) total += sums[l];
}

// Rows of `width` numbers to columns `first`, `first` + step, ... of x.
template <int width, class Float>
LDPK_FN void turn_columns(const Float* __restrict rows, int64_t n, int first, int step, Float (*x)[kNarrowRows]) {
  constexpr int half = width / 2;
  Float kept[half > 1 ? 2 * half * kNarrowRows : 1];
  Float* __restrict even = half > 1 ? kept : x[first];
  Float* __restrict odd = half > 1 ? kept + half * kNarrowRows : x[first + step];
  for (int64_t i = 0; i < n * half; ++i) {
    even[i] = rows[2 * i];
    odd[i] = rows[2 * i + 1];
  }
  if constexpr (half > 1) {
    turn_columns<half>(even, n, first, 2 * step, x);
    turn_columns<half>(odd, n, first + step, 2 * step, x);
  }
}

template <class Lanes, Dtype dtype, int width>
void narrow_range(const Span& span, double bound, double unit, int64_t row, int64_t row_end, double* norms,
                  double* total) {
  using Float = FloatOf<dtype>;
  const int64_t columns = span.numel;
  alignas(64) Float x[width][kNarrowRows], flat[width * kNarrowRows], factors[kNarrowRows];
  alignas(64) double norm[kNarrowRows];
  for (int64_t j = 0; j < columns; ++j) total[j] = 0;
  for (; row < row_end; row += kNarrowRows) {
    const int64_t n = row_end - row < kNarrowRows ? row_end - row : kNarrowRows;
    const auto* data = reinterpret_cast<const BitsOf<dtype>*>(span.data) + row * columns;
    const Float* all = widened<Lanes, dtype>(data, n * columns, flat);
    if (columns == width) {
      turn_columns<width>(all, n, 0, 1, x);
    } else {
      for (int64_t j = 0; j < columns; ++j) {
        for (int64_t i = 0; i < n; ++i) x[j][i] = all[i * columns + j];
      }
      for (int64_t j = columns; j < width; ++j) memset(x[j], 0, sizeof(x[j]));
    }
    norms_of_rows<width>(x, n, norm);
    if (norms) memcpy(norms + row, norm, n * sizeof(double));
    if (unit == 0 && n == kNarrowRows && all_within(norm, bound)) {  // products by 1, without a division
      for (int64_t j = 0; j < columns; ++j) add_blocks<Lanes>(x[j], total[j]);
      continue;
    }
    for (int64_t i = n; i % 16 != 0; ++i) norm[i] = 0;
    if (unit > 0) {
      alignas(64) double scale[kNarrowRows];
      factors_of<Lanes>(norm, bound, n, scale);
      for (int64_t j = 0; j < columns; ++j) add_integers<Lanes>(x[j], scale, unit, n, total[j]);
    } else {
      factors_of<Lanes>(norm, bound, n, factors);
      for (int64_t j = 0; j < columns; ++j) add_column<Lanes>(x[j], factors, n, total[j]);
    }
  }
}

// total[j] = the clipped sum of column j over rows [row, row_end), which begin a group; norms[i] = the norm of row i.
template <class Lanes>
void narrow_rows(const Span& span, double bound, double unit, int64_t row, int64_t row_end, double* norms,
                 double* total) {
  with_dtype(span, [&](auto dtype) {
    const auto run = [&](auto width) {
      narrow_range<Lanes, dtype(), width()>(span, bound, unit, row, row_end, norms, total);
    };
    if (span.numel == 1) return number_range<Lanes, dtype()>(span, bound, unit, row, row_end, norms, total);
    if (span.numel == 2) return run(std::integral_constant<int, 2>{});
    if (span.numel <= 4) return run(std::integral_constant<int, 4>{});
    run(std::integral_constant<int, kNarrowColumns>{});
  });
}

}  // namespace ldpk
