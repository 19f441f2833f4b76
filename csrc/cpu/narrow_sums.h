// SPDX-License-Identifier: Apache-2.0
// Clipped sums of a matrix of few columns, as losses are: one pass from rows to sums, with rows across the lanes. The
// bits are those of clipped_noise.h, whose comments say in which order numbers are added.
#pragma once

#include <cmath>

#include "clipped_noise.h"

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
  int64_t within = 0;
  for (int64_t i = 0; i < kNarrowRows; ++i) within += is_within(norms[i], bound);
  return within == kNarrowRows;
}

// The norms of n rows, whose columns from the last on to `width` are zero: lanes of squares as in squares_of.
template <int width, class Float>
LDPK_FN void norms_of_rows(const Float (*x)[kNarrowRows], int64_t n, double* __restrict norms) {
  for (int64_t i = 0; i < n; ++i) {
    if constexpr (width == 1 && sizeof(Float) == 4) {
      norms[i] = std::fabs(static_cast<double>(x[0][i]));  // the root of an exact square
    } else {
      double lanes[width];
      for (int j = 0; j < width; ++j) lanes[j] = static_cast<double>(x[j][i]) * static_cast<double>(x[j][i]);
      for (int half = width / 2; half > 0; half /= 2) {
        for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
      }
      norms[i] = sqrt(lanes[0]);
    }
  }
}

// total[j] += scale[i] * x[i] over n rows, in one column.
template <class Lanes, class Float>
LDPK_FN void add_column(const Float* __restrict x, const double* __restrict scale, double unit, int64_t n,
                        double& total) {
  if (unit > 0) {  // integers: in any order
    double sums[16] = {};
    for (int64_t i = 0; i < n; ++i) {
      const double product = __builtin_trunc(x[i] * (scale[i] / unit));
      sums[i % 16] += scale[i] == 0 ? 0 : product;
    }
    for (const double sum : sums) total += sum;
    return;
  }
  Float products[kNarrowRows];
  for (int64_t i = 0; i < n; ++i) {
    const Float product = x[i] * scale_as(Float{}, scale[i]);
    products[i] = scale[i] == 0 ? 0 : product;
  }
  for (int64_t i = n; i < kNarrowRows; ++i) products[i] = 0;
  add_blocks<Lanes>(products, total);
}

template <class Lanes, Dtype dtype, int width>
void narrow_range(const Span& span, double bound, double unit, int64_t row, int64_t row_end, double* norms,
                  double* total) {
  using Float = FloatOf<dtype>;
  const int64_t columns = span.numel;
  Float x[width][kNarrowRows], flat[width > 1 ? width * kNarrowRows : 1];
  double norm[kNarrowRows], scale[kNarrowRows];
  for (int64_t j = 0; j < columns; ++j) total[j] = 0;
  for (; row < row_end; row += kNarrowRows) {
    const int64_t n = row_end - row < kNarrowRows ? row_end - row : kNarrowRows;
    const auto* data = reinterpret_cast<const BitsOf<dtype>*>(span.data) + row * columns;
    const Float(*rows)[kNarrowRows] = x;
    if constexpr (width == 1) {
      rows = reinterpret_cast<const Float(*)[kNarrowRows]>(widened<Lanes, dtype>(data, n, x[0]));
    } else {
      const Float* __restrict all = widened<Lanes, dtype>(data, n * columns, flat);
      for (int64_t j = 0; j < width; ++j) {
        for (int64_t i = 0; i < n; ++i) x[j][i] = j < columns ? all[i * columns + j] : 0;
      }
    }
    double* const found = norms ? norms + row : norm;
    norms_of_rows<width>(rows, n, found);
    if (unit == 0 && n == kNarrowRows && all_within(found, bound)) {  // products by 1, without a division
      for (int64_t j = 0; j < columns; ++j) add_blocks<Lanes>(rows[j], total[j]);
      continue;
    }
    for (int64_t i = 0; i < n; ++i) scale[i] = row_scale(found[i], bound);
    for (int64_t j = 0; j < columns; ++j) add_column<Lanes>(rows[j], scale, unit, n, total[j]);
  }
}

// total[j] = the clipped sum of column j over rows [row, row_end), which begin a block; norms[i] = the norm of row i.
template <class Lanes>
void narrow_rows(const Span& span, double bound, double unit, int64_t row, int64_t row_end, double* norms,
                 double* total) {
  with_dtype(span, [&](auto dtype) {
    const auto run = [&](auto width) {
      narrow_range<Lanes, dtype(), width()>(span, bound, unit, row, row_end, norms, total);
    };
    if (span.numel == 1) return run(std::integral_constant<int, 1>{});
    if (span.numel == 2) return run(std::integral_constant<int, 2>{});
    if (span.numel <= 4) return run(std::integral_constant<int, 4>{});
    run(std::integral_constant<int, kNarrowColumns>{});
  });
}

}  // namespace ldpk
