// SPDX-License-Identifier: Apache-2.0
// Registers of plain numbers, and sums of products in the one order that every backend has (order.h).
#pragma once

#include <cstring>

#include "../dtype.h"
#include "../order.h"

namespace ldpk {

template <class T, int width>
struct Vector {
  typedef T type __attribute__((vector_size(sizeof(T) * width)));
};

// Elements [0, n) of a row as fp32 or fp64: themselves, or a copy in `buffer`.
template <class Lanes, Dtype dtype>
LDPK_FN const FloatOf<dtype>* widened(const BitsOf<dtype>* in, int64_t n, FloatOf<dtype>* buffer) {
  if constexpr (sizeof(*in) == sizeof(*buffer)) return reinterpret_cast<const FloatOf<dtype>*>(in);
  int64_t i = 0;
  for (; i + Lanes::count <= n; i += Lanes::count) {
    const auto x = Element<dtype>::template load<Lanes>(in + i);
    memcpy(buffer + i, &x, sizeof(float) * Lanes::count);
  }
  for (; i < n; ++i) buffer[i] = Element<dtype>::template load<ScalarLanes>(in + i);
  return buffer;
}

// The sum of products x[i] y[i] in fp64: number i goes to lane i mod 16, and the lanes are added by halves.
template <class Lanes>
struct LaneSums {
  static constexpr int width = Lanes::blocks > 1 ? Lanes::blocks : 2, registers = kSquareLanes / width;
  using Doubles = typename Vector<double, width>::type;

  Doubles sums[registers] = {};

  // The next 16 of both.
  template <class X, class Y>
  LDPK_FN void add(const X* x, const Y* y) {
#pragma GCC unroll 8
    for (int r = 0; r < registers; ++r) sums[r] += wide(x + r * width) * wide(y + r * width);
  }

  // With the last n, fewer than 16.
  template <class X, class Y>
  LDPK_FN double total(const X* x, const Y* y, int64_t n) const {
    double lanes[kSquareLanes];
    memcpy(lanes, sums, sizeof(lanes));
    for (int64_t l = 0; l < n; ++l) lanes[l] += static_cast<double>(x[l]) * static_cast<double>(y[l]);
    return sum_of_lanes(lanes);
  }

 private:
  template <class Float>
  static LDPK_FN Doubles wide(const Float* p) {
    typename Vector<Float, width>::type numbers;
    memcpy(&numbers, p, sizeof(numbers));
    return __builtin_convertvector(numbers, Doubles);
  }
};

// The sum of products of n numbers in that order.
template <class Lanes, class X, class Y>
LDPK_FN double product_of(const X* x, const Y* y, int64_t n) {
  LaneSums<Lanes> sums;
  int64_t i = 0;
  for (; i + kSquareLanes <= n; i += kSquareLanes) sums.add(x + i, y + i);
  return sums.total(x + i, y + i, n - i);
}

}  // namespace ldpk
