// SPDX-License-Identifier: Apache-2.0
// What adaptive ranges need of a layer, in one pass: extremes, sums and count of its finite numbers.
#pragma once

#include "../dtype.h"
#include "../order.h"

namespace ldpk {

struct Summary {
  double min = __builtin_inf();
  double max = -__builtin_inf();
  double sum = 0;
  double sum_squares = 0;
  int64_t finite = 0;

  LDPK_FN void add(const Summary& other) {
    min = other.min < min ? other.min : min;
    max = other.max > max ? other.max : max;
    sum += other.sum;
    sum_squares += other.sum_squares;
    finite += other.finite;
  }
};

// Element i of a part goes to one of 16 sums, i mod 16, whatever the machine, so the result is the same bits on every
// one.
template <class Lanes, Dtype dtype>
Summary summarize_range(const BitsOf<dtype>* in, int64_t n) {
  constexpr int width = kSummaryLanes;
  double min[width], max[width], sum[width] = {}, squares[width] = {}, finite[width] = {};
  for (int l = 0; l < width; ++l) min[l] = __builtin_inf(), max[l] = -__builtin_inf();
  for (int64_t i = 0; i < n; i += width) {
    double x[width];
    const int filled = n - i < width ? static_cast<int>(n - i) : width;
    for (int l = 0; l < filled; ++l) {
      x[l] = Element<dtype>::number(in[i + l]);
    }
    for (int l = filled; l < width; ++l) x[l] = __builtin_nan("");
    for (int l = 0; l < width; ++l) {
      const bool ok = x[l] - x[l] == 0;  // neither infinite nor NaN
      const double v = ok ? x[l] : 0.0;
      const double low = ok ? x[l] : __builtin_inf(), high = ok ? x[l] : -__builtin_inf();
      min[l] = low < min[l] ? low : min[l];
      max[l] = high > max[l] ? high : max[l];
      sum[l] += v;
      squares[l] += v * v;
      finite[l] += ok ? 1.0 : 0.0;
    }
  }
  Summary total;
  for (int l = 0; l < width; ++l) total.add({min[l], max[l], sum[l], squares[l], static_cast<int64_t>(finite[l])});
  return total;
}

}  // namespace ldpk
