// SPDX-License-Identifier: Apache-2.0
// What adaptive ranges need of a layer, in one pass: extremes, mean and spread of its numbers, and how many are none.
#pragma once

#include <cmath>
#include <limits>

#include "../lanes.h"

namespace ldpk {

struct Summary {
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();
  double sum = 0;
  double sum_squares = 0;
  int64_t finite = 0;

  void add(const Summary& other) {
    min = other.min < min ? other.min : min;
    max = other.max > max ? other.max : max;
    sum += other.sum;
    sum_squares += other.sum_squares;
    finite += other.finite;
  }
};

// Sixteen partial sums whatever the machine, so that the result is too.
template <class Load>
Summary summarize(int64_t n, Load load) {
  constexpr int lanes = 16;
  Summary parts[lanes];
  for (int64_t i = 0; i < n; ++i) {
    const double x = load(i);
    Summary& part = parts[i % lanes];
    if (!std::isfinite(x)) continue;
    part.min = x < part.min ? x : part.min;
    part.max = x > part.max ? x : part.max;
    part.sum += x;
    part.sum_squares += x * x;
    ++part.finite;
  }
  for (int l = 1; l < lanes; ++l) parts[0].add(parts[l]);
  return parts[0];
}

}  // namespace ldpk
