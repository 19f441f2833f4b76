// SPDX-License-Identifier: Apache-2.0
// Where Winograd's convolutions multiply: tiles of 6 by 6 numbers are polynomials, known by their values at six points.
#pragma once

#include "machine.h"

namespace ldpk {

// The points are 0, a, -a, b, -b and infinity; those of kernels are divided by what interpolation asks for. With these
// a and b an output's error is half of what it is with the usual 1 and 2, and 6 times the definition's; sums of their
// powers are exact.
template <class M>
struct Points {
  using V = typename M::V;
  static constexpr int kSide = 6;
  static_assert(kSide * kSide == kPoints);
  static constexpr float a = 0.75f, b = 1.5f, aa = a * a, bb = b * b;

  // A function of type [from] -> [to], over columns and then over rows: both are passed one number after another.
  template <int from, int to, class F, class Load, class Store>
  static LDPK_FN void both_ways(F f, Load load, Store store) {
    V between[to][from];
#pragma GCC unroll 8
    for (int x = 0; x < from; ++x) {
      V in[from], out[to];
#pragma GCC unroll 8
      for (int y = 0; y < from; ++y) in[y] = load(y, x);
      f(in, out);
#pragma GCC unroll 8
      for (int y = 0; y < to; ++y) between[y][x] = out[y];
    }
#pragma GCC unroll 8
    for (int y = 0; y < to; ++y) {
      V out[to];
      f(between[y], out);
#pragma GCC unroll 8
      for (int x = 0; x < to; ++x) store(y, x, out[x]);
    }
  }

  static LDPK_FN void of_inputs(const V* in, V* out) {
    out[0] = in[0] * (aa * bb) - in[2] * (aa + bb) + in[4];
    V even = in[4] - in[2] * bb, odd = (in[3] - in[1] * bb) * a;
    out[1] = even + odd, out[2] = even - odd;
    even = in[4] - in[2] * aa, odd = (in[3] - in[1] * aa) * b;
    out[3] = even + odd, out[4] = even - odd;
    out[5] = in[1] * (aa * bb) - in[3] * (aa + bb) + in[5];
  }

  // The values at x and -x, times a scale.
  template <int n>
  static LDPK_FN void at(float x, float scale, const V* in, V* out) {
    V even{}, odd{};
    float power = scale;
#pragma GCC unroll 8
    for (int i = 0; i < n; ++i, power *= x) (i % 2 ? odd : even) += in[i] * power;
    out[0] = even + odd, out[1] = even - odd;
  }
  template <int n>
  static LDPK_FN void of_kernel(const V* in, V* out) {
    out[0] = in[0] * (1 / (aa * bb));
    at<n>(a, 1 / (2 * aa * (aa - bb)), in, out + 1);
    at<n>(b, 1 / (2 * bb * (bb - aa)), in, out + 3);
    out[5] = in[n - 1];
  }

  template <int n>
  static LDPK_FN void of_sums(const V* in, V* out) {
    const V evens[2] = {in[1] + in[2], in[3] + in[4]}, odds[2] = {in[1] - in[2], in[3] - in[4]};
    float as = 1.0f, bs = 1.0f;
#pragma GCC unroll 8
    for (int i = 0; i < n; ++i, as *= a, bs *= b)
      out[i] = (i % 2 ? odds : evens)[0] * as + (i % 2 ? odds : evens)[1] * bs;
    out[0] += in[0], out[n - 1] += in[5];
  }
};

}  // namespace ldpk
