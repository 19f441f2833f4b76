// SPDX-License-Identifier: Apache-2.0
// Householder reflections of random normals, one after another: docs/mechanisms/projected_code.md.
#pragma once

#include <cmath>

#include "../order.h"
#include "dispatch.h"

namespace ldpk {

// <g, g> and <g, x>: element i goes to lane i mod 16; lanes l and l + 8 are added, then l and l + 4, l + 2, l + 1.
template <class Lanes>
LDPK_FN void products(const double* g, const double* x, int64_t n, double& square, double& product) {
  constexpr int width = Lanes::blocks > 1 ? Lanes::blocks : 2, registers = kSquareLanes / width;
  typedef double Doubles __attribute__((vector_size(8 * width)));
  Doubles squares[registers] = {}, sums[registers] = {};
  int64_t i = 0;
  for (; i + kSquareLanes <= n; i += kSquareLanes) {
#pragma GCC unroll 8
    for (int r = 0; r < registers; ++r) {
      Doubles a, b;
      memcpy(&a, g + i + r * width, sizeof(a));
      memcpy(&b, x + i + r * width, sizeof(b));
      squares[r] += a * a;
      sums[r] += a * b;
    }
  }
  double lanes[2][kSquareLanes];
  memcpy(lanes[0], squares, sizeof(squares));
  memcpy(lanes[1], sums, sizeof(sums));
  for (int l = 0; i < n; ++i, ++l) lanes[0][l] += g[i] * g[i], lanes[1][l] += g[i] * x[i];
  square = sum_of_lanes(lanes[0]), product = sum_of_lanes(lanes[1]);
}

// Reflection i = 0, ..., k - 2 maps g, the next k - i of the normals, along the first axis; it leaves the i numbers
// before alone. With w = g + sign(g_0) |g| e_0 it is z - <w, z> w / (|g| (|g| + |g_0|)). `back` undoes all of them.
template <class Lanes>
void reflect(const double* normals, int64_t k, bool back, double* x) {
  const auto start = [k](int64_t i) { return i * k - i * (i - 1) / 2; };
  for (int64_t j = 0; j < k - 1; ++j) {
    const int64_t i = back ? k - 2 - j : j, n = k - i;
    const double* g = normals + start(i);
    double* z = x + i;
    double square, product;
    products<Lanes>(g, z, n, square, product);
    const double length = std::sqrt(square), signed_length = std::copysign(length, g[0]);
    const double factor = (product + signed_length * z[0]) / (length * (length + std::fabs(g[0])));
    const double first = z[0] - factor * signed_length;
    z[0] = first;
    for (int64_t l = 0; l < n; ++l) z[l] -= factor * g[l];
  }
}

}  // namespace ldpk
