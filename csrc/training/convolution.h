// SPDX-License-Identifier: Apache-2.0
// The two loops of a convolution. Both keep a block of sums in registers and add to each the product of one number of
// an image's plane, in all places of a register, with a register of channels.
#pragma once

#include <utility>

#include "machine.h"

namespace ldpk {

// An example's planes: rows of zeros lie above and below those that count, which begin at `top`.
struct Planes {
  const float* in;
  int64_t plane, row, inputs, top, height;

  // Of `rows` rows from row y on: the first that counts, and the one behind the last.
  LDPK_FN int64_t first(int64_t y) const { return top > y ? top - y : 0; }
  LDPK_FN int64_t last(int64_t y, int64_t rows) const { return top + height - y < rows ? top + height - y : rows; }
};

// out[y][x][o] = start[o] + sum over c, i, j of in[c][y + i][x + j] factors[c][i][j][o], for one example, or zero where
// that is less and it `rectifies`; `channels` are of `out`, in whole registers.
struct Convolution {
  Planes of;
  int64_t kh, kw;
  const float* factors;
  const float* start;  // null for zeros
  bool rectifies;
  float* out;
  int64_t oh, ow, channels;
};

// gradient[c][i][j][o] += sum over y, x of in[c][y + i][x + j] slope[y][x][o].
struct WeightGradient {
  Planes of;
  int64_t kh, kw;
  const float* slope;
  int64_t oh, ow, channels;
  float* gradient;
};

// `whole` in as few parts of at most `most` as it takes, which differ by one at most: part i.
struct Parts {
  int64_t whole, count;
  LDPK_FN Parts(int64_t all, int64_t most) : whole(all), count((all + most - 1) / most) {}
  LDPK_FN int64_t size(int64_t i) const { return whole / count + (i < whole % count ? 1 : 0); }
};

template <class M>
struct Convolver {
  using V = typename M::V;

  // A block of `columns` neighbours from (y, x) on, for so many registers of channels from o on.
  template <int columns, int vectors>
  static LDPK_CALL void block(const Convolution& a, int64_t y, int64_t x0, int64_t o) {
    V sums[columns][vectors];
#pragma GCC unroll 32
    for (int x = 0; x < columns; ++x) {
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) sums[x][v] = a.start ? M::load(a.start + o + v * M::width) : V{};
    }
    const int64_t channels = a.channels, taps = a.kw, row = a.of.row;
    const int64_t begin = a.of.first(y), end = a.of.last(y, a.kh);
    const float* in = a.of.in + (y + begin) * row + x0;
    const float* kernel = a.factors + begin * taps * channels + o;
    for (int64_t c = 0; c < a.of.inputs; ++c, in += a.of.plane, kernel += a.kh * taps * channels) {
      const float *line = in, *factors = kernel;
      for (int64_t i = begin; i < end; ++i, line += row) {
        for (int64_t j = 0; j < taps; ++j, factors += channels) {
          V of[vectors];
#pragma GCC unroll 4
          for (int v = 0; v < vectors; ++v) of[v] = M::load(factors + v * M::width);
#pragma GCC unroll 32
          for (int x = 0; x < columns; ++x) {
            const V number = M::all(line[j + x]);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; ++v) sums[x][v] += number * of[v];
          }
        }
      }
    }
    float* out = a.out + (y * a.ow + x0) * channels + o;
#pragma GCC unroll 32
    for (int x = 0; x < columns; ++x) {
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) {
        const V sum = sums[x][v];
        M::store(out + x * channels + v * M::width, a.rectifies ? M::rectified(sum) : sum);
      }
    }
  }

  using Block = void (*)(const Convolution&, int64_t, int64_t, int64_t);
  template <int vectors, class Numbers>
  struct Blocks;
  template <int vectors, int... i>
  struct Blocks<vectors, std::integer_sequence<int, i...>> {
    static constexpr Block of[] = {block<i + 1, vectors>...};
  };

  template <int vectors>
  static LDPK_FN void convolve_channels(const Convolution& a, int64_t o) {
    using All = Blocks<vectors, std::make_integer_sequence<int, M::kColumns>>;
    const Parts parts(a.ow, M::kColumns);
    for (int64_t y = 0; y < a.oh; ++y) {
      for (int64_t part = 0, x = 0; part < parts.count; x += parts.size(part++))
        All::of[parts.size(part) - 1](a, y, x, o);
    }
  }

  static LDPK_CALL void convolve(const Convolution& a) {
    int64_t o = 0;
    for (; o + M::kVectors * M::width <= a.channels; o += M::kVectors * M::width) convolve_channels<M::kVectors>(a, o);
    for (; o < a.channels; o += M::width) convolve_channels<1>(a, o);
  }

  // `lines` rows of the planes, so far apart, `taps` neighbours in each, and registers of channels: over some rows.
  template <int lines, int taps, int vectors>
  static LDPK_CALL void sums(const WeightGradient& a, const float* in, int64_t apart, const float* slope, int64_t rows,
                             float* gradient, int64_t gradient_apart) {
    V sums[lines][taps][vectors];
    const int64_t channels = a.channels;
#pragma GCC unroll 8
    for (int l = 0; l < lines; ++l) {
#pragma GCC unroll 8
      for (int t = 0; t < taps; ++t) {
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v)
          sums[l][t][v] = M::load(gradient + l * gradient_apart + t * channels + v * M::width);
      }
    }
    for (int64_t y = 0; y < rows; ++y, in += a.of.row) {
      const float* line[lines];
#pragma GCC unroll 8
      for (int l = 0; l < lines; ++l) line[l] = in + l * apart;
      for (int64_t x = 0; x < a.ow; ++x, slope += channels) {
        V of[vectors];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) of[v] = M::load(slope + v * M::width);
#pragma GCC unroll 8
        for (int l = 0; l < lines; ++l) {
#pragma GCC unroll 8
          for (int t = 0; t < taps; ++t) {
            const V number = M::all(line[l][x + t]);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; ++v) sums[l][t][v] += number * of[v];
          }
        }
      }
    }
#pragma GCC unroll 8
    for (int l = 0; l < lines; ++l) {
#pragma GCC unroll 8
      for (int t = 0; t < taps; ++t) {
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v)
          M::store(gradient + l * gradient_apart + t * channels + v * M::width, sums[l][t][v]);
      }
    }
  }

  static constexpr int kTaps = 5, kLines = 5;  // the largest of a block
  using Sums = void (*)(const WeightGradient&, const float*, int64_t, const float*, int64_t, float*, int64_t);
  static constexpr int most_lines(int taps, int vectors) {
    const int lines = M::kSums / (taps * vectors);
    return lines > kLines ? kLines : lines < 1 ? 1 : lines;
  }
  template <int taps, int vectors>
  static LDPK_FN Sums sums_of(int64_t lines) {
    constexpr int most = most_lines(taps, vectors);
    if constexpr (most >= 5) {
      if (lines == 5) return sums<5, taps, vectors>;
    }
    if constexpr (most >= 4) {
      if (lines == 4) return sums<4, taps, vectors>;
    }
    if constexpr (most >= 3) {
      if (lines == 3) return sums<3, taps, vectors>;
    }
    if constexpr (most >= 2) {
      if (lines == 2) return sums<2, taps, vectors>;
    }
    return sums<1, taps, vectors>;
  }
  template <int vectors>
  static LDPK_FN Sums sums_of(int64_t lines, int64_t taps) {
    return taps == 5   ? sums_of<5, vectors>(lines)
           : taps == 4 ? sums_of<4, vectors>(lines)
           : taps == 3 ? sums_of<3, vectors>(lines)
           : taps == 2 ? sums_of<2, vectors>(lines)
                       : sums_of<1, vectors>(lines);
  }

  template <int vectors>
  static LDPK_FN void gradient_of(const WeightGradient& a, int64_t o, int64_t y, int64_t rows) {
    // Lines of a block are one row of the kernel in several planes, or several rows in one plane.
    const bool across = a.of.inputs >= a.kh;
    const int64_t line = a.kw * a.channels, input = a.kh * line;  // of the gradient
    const int64_t apart = across ? a.of.plane : a.of.row, gradient_apart = across ? input : line;
    const int64_t other = across ? a.of.row : a.of.plane, gradient_other = across ? line : input;
    const Parts taps(a.kw, kTaps);
    for (int64_t tap = 0, j = 0; tap < taps.count; j += taps.size(tap++)) {
      const Parts lines(across ? a.of.inputs : a.kh, most_lines(static_cast<int>(taps.size(0)), vectors));
      for (int64_t i = 0; i < (across ? a.kh : a.of.inputs); ++i) {
        const int64_t begin = across ? a.of.first(y + i) : 0, end = across ? a.of.last(y + i, rows) : rows;
        if (begin >= end) continue;
        const float* in = a.of.in + (y + begin) * a.of.row + i * other + j;
        const float* slope = a.slope + (y + begin) * a.ow * a.channels + o;
        float* gradient = a.gradient + i * gradient_other + j * a.channels + o;
        for (int64_t part = 0, l = 0; part < lines.count; l += lines.size(part++)) {
          sums_of<vectors>(lines.size(part), taps.size(tap))(a, in + l * apart, apart, slope, end - begin,
                                                             gradient + l * gradient_apart, gradient_apart);
        }
      }
    }
  }

  // By so many rows at a time as stay in the first cache.
  static LDPK_CALL void gradient(const WeightGradient& a) {
    const int64_t fit = 4096 / (a.ow * a.channels);
    const Parts parts(a.oh, fit < 1 ? 1 : fit);
    for (int64_t part = 0, y = 0; part < parts.count; y += parts.size(part++)) {
      const int64_t rows = parts.size(part);
      int64_t o = 0;
      for (; o + M::kVectors * M::width <= a.channels; o += M::kVectors * M::width)
        gradient_of<M::kVectors>(a, o, y, rows);
      for (; o < a.channels; o += M::width) gradient_of<1>(a, o, y, rows);
    }
  }
};

}  // namespace ldpk
