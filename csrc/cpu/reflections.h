// SPDX-License-Identifier: Apache-2.0
// Householder reflections of random normals, one after another: docs/mechanisms/projected_code.md.
#pragma once

#include <cmath>

#include "dispatch.h"
#include "sums.h"

namespace ldpk {

// <g, g> and <g, x>.
template <class Lanes>
LDPK_FN void products(const double* g, const double* x, int64_t n, double& square, double& product) {
  LaneSums<Lanes> squares, sums;
  int64_t i = 0;
  for (; i + kSquareLanes <= n; i += kSquareLanes) squares.add(g + i, g + i), sums.add(g + i, x + i);
  square = squares.total(g + i, g + i, n - i), product = sums.total(g + i, x + i, n - i);
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
