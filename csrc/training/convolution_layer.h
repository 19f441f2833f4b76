// SPDX-License-Identifier: Apache-2.0
// A convolution of some of a batch's examples, by the definition or by tiles: forwards, back and down.
#pragma once

#include <cstring>

#include "winograd.h"

namespace ldpk {

template <class M>
struct ConvolutionLayer {
  using V = typename M::V;

  // f(kernel's side, side of a tile of outputs).
  template <class F>
  static LDPK_FN void with_sides(const Layer& l, F f) {
    if (l.kh == 3) f(std::integral_constant<int, 3>(), std::integral_constant<int, 4>());
    if (l.kh == 5) f(std::integral_constant<int, 5>(), std::integral_constant<int, 2>());
  }

  // Planes with rows so far apart.
  static LDPK_CALL void copy_planes(const float* from, int64_t channels, int64_t height, int64_t width, float* to,
                                    int64_t plane, int64_t row) {
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t y = 0; y < height; ++y, from += width) memcpy(to + c * plane + y * row, from, width * sizeof(float));
    }
  }

  // The same from [height][width][pitch].
  static LDPK_CALL void to_planes(const float* from, int64_t pitch, int64_t channels, int64_t height, int64_t width,
                                  float* to, int64_t plane, int64_t row) {
    for (int64_t y = 0; y < height; ++y)
      transpose<M>(from + y * width * pitch, pitch, width, channels, to + y * row, plane);
  }

  static LDPK_FN Planes padded_planes(const Layer& l, int64_t b) {
    return {l.padded + b * l.ci * l.padded_plane(), l.padded_plane(), l.padded_row(), l.ci, l.ph, l.ih};
  }
  static LDPK_FN Images inputs(const Layer& l, int64_t b, int64_t count) {
    return {l.in + b * l.in_size(), count, l.in_size(), l.ih, l.iw, l.ci, l.in_channels()};
  }
  static LDPK_FN Images slopes(const Layer& l, int64_t b, int64_t count) {
    return {l.out_slope + b * l.out_slope_apart, count, l.out_slope_apart, l.oh, l.ow, l.co, l.out_channels()};
  }

  // Before the examples of a step go forwards.
  static LDPK_CALL void begin(const Layer& l) {
    if (!l.by_tiles()) return;
    with_sides(
        l, [&](auto side, auto) { Winograd<M>::template to_points<side>(l.weight, l.ci, l.out_channels(), l.points); });
  }

  // `count` examples from b on.
  static LDPK_CALL void forwards(const Layer& l, int64_t b, int64_t count) {
    if (l.by_tiles()) {
      const TiledConvolution a{inputs(l, b, count),      l.ph,         l.pw, l.points, l.bias,           l.rectifies,
                               l.out + b * l.out_size(), l.out_size(), l.oh, l.ow,     l.out_channels(), l.tiles};
      return with_sides(l, [&](auto, auto tile) { Winograd<M>::template convolve<tile>(a); });
    }
    for (const int64_t end = b + count; b < end; ++b) {
      const Planes planes = padded_planes(l, b);
      if (l.padded != l.in) {
        const float* in = l.in + b * l.in_numbers();
        float* inside = l.padded + b * l.ci * l.padded_plane() + l.ph * l.padded_row() + l.pw;
        if (l.in_planes) {
          copy_planes(in, l.ci, l.ih, l.iw, inside, l.padded_plane(), l.padded_row());
        } else {
          to_planes(in, l.in_channels(), l.ci, l.ih, l.iw, inside, l.padded_plane(), l.padded_row());
        }
      }
      Convolver<M>::convolve(
          {planes, l.kh, l.kw, l.weight, l.bias, l.rectifies, l.out + b * l.out_size(), l.oh, l.ow, l.out_channels()});
    }
  }

  static LDPK_CALL void back_to_inputs(const Layer& l, int64_t b, int64_t count) {
    const int64_t above = l.kh - 1 - l.ph, before = l.kw - 1 - l.pw;
    float* in_slope = l.in_slope + b * l.in_slope_apart;
    if (l.by_tiles()) {
      const TiledConvolution a{slopes(l, b, count), above, before, l.mirrored_points, nullptr, false, in_slope,
                               l.in_slope_apart,    l.ih,  l.iw,   l.in_channels(),   l.tiles};
      return with_sides(l, [&](auto, auto tile) { Winograd<M>::template convolve<tile>(a); });
    }
    const Planes planes{l.spread, l.spread_plane(), l.spread_row(), l.co, above, l.oh};
    for (const int64_t end = b + count; b < end; ++b, in_slope += l.in_slope_apart) {
      to_planes(l.out_slope + b * l.out_slope_apart, l.out_channels(), l.co, l.oh, l.ow,
                l.spread + above * l.spread_row() + before, l.spread_plane(), l.spread_row());
      Convolver<M>::convolve({planes, l.kh, l.kw, l.mirrored, nullptr, false, in_slope, l.ih, l.iw, l.in_channels()});
    }
  }

  static LDPK_CALL void back_to_weights(const Layer& l, int64_t b, int64_t count) {
    if (l.by_tiles()) {
      const TiledGradient a{inputs(l, b, count), slopes(l, b, count), l.ph, l.pw, l.gradient_points, l.tiles};
      return with_sides(l, [&](auto, auto tile) { Winograd<M>::template gradient<tile>(a); });
    }
    for (const int64_t end = b + count; b < end; ++b)
      Convolver<M>::gradient({padded_planes(l, b), l.kh, l.kw, l.out_slope + b * l.out_slope_apart, l.oh, l.ow,
                              l.out_channels(), l.weight_gradient});
  }

  static LDPK_CALL void back(const Layer& l, int64_t b, int64_t count) {
    if (l.in_slope) back_to_inputs(l, b, count);
    if (l.trains_weight) back_to_weights(l, b, count);
    for (int64_t c = 0; l.trains_bias && c < l.out_channels(); c += M::width) {
      for (int64_t e = b; e < b + count; ++e) {
        const float* slope = l.out_slope + e * l.out_slope_apart;
        V sum{};
        for (int64_t p = c; p < l.out_size(); p += l.out_channels()) sum += M::load(slope + p);
        M::store(l.bias_gradient + c, M::load(l.bias_gradient + c) + sum);
      }
    }
  }

  // Before the examples of a step go back, and behind them.
  static LDPK_CALL void begin_back(const Layer& l) {
    const int64_t taps = l.kh * l.kw;
    for (int64_t t = 0; l.in_slope && t < taps; ++t)
      transpose<M>(l.weight + (taps - 1 - t) * l.out_channels(), taps * l.out_channels(), l.ci, l.co,
                   l.mirrored + t * l.in_channels(), taps * l.in_channels());
    if (!l.by_tiles()) return;
    if (l.in_slope)
      with_sides(l, [&](auto side, auto) {
        Winograd<M>::template to_points<side>(l.mirrored, l.co, l.in_channels(), l.mirrored_points);
      });
    if (l.trains_weight)
      memset(l.gradient_points, 0, kPoints * Layer::points_apart(l.in_channels(), l.out_channels()) * sizeof(float));
  }
  static LDPK_CALL void end_back(const Layer& l) {
    if (!l.by_tiles() || !l.trains_weight) return;
    with_sides(l, [&](auto side, auto) {
      Winograd<M>::template from_points<side>(l.gradient_points, l.in_channels(), l.ci, l.out_channels(),
                                              l.weight_gradient);
    });
  }
};

}  // namespace ldpk
