// SPDX-License-Identifier: Apache-2.0
// Convolutions by Winograd's algorithm: F(4x4, 3x3) and F(2x2, 5x5), which multiply 36 numbers where the definition
// multiplies 144 and 100. Tiles of images go to points, are multiplied there and summed over channels, and come back.
#pragma once

#include <cstring>
#include <utility>

#include "convolution.h"
#include "points.h"

namespace ldpk {

// [examples][height][width][channels], channels in whole registers, of which `numbers` are not zeros that fill up.
struct Images {
  const float* of;
  int64_t examples, apart, height, width, numbers, channels;
};

// Tiles of images, one every `side` rows and columns; the first begins so far above and before its image.
struct Tiling {
  int64_t above, before, side, down, across;
  LDPK_FN Tiling(int64_t rows_above, int64_t columns_before, int64_t height, int64_t width, int64_t m)
      : above(rows_above), before(columns_before), side(m), down((height + m - 1) / m), across((width + m - 1) / m) {}
  LDPK_FN int64_t of_example() const { return down * across; }
  LDPK_FN int64_t example(int64_t t) const { return t / of_example(); }
  LDPK_FN int64_t row(int64_t t) const { return t % of_example() / across * side; }
  LDPK_FN int64_t column(int64_t t) const { return t % of_example() % across * side; }
};

// out[y][x][o] = start[o] + sum over c, i, j of in[y + i - above][x + j - before][c] kernel[c][i][j][o], or zero where
// that is less and it `rectifies`.
struct TiledConvolution {
  Images in;
  int64_t above, before;
  const float* kernel;  // at points, [in.numbers][channels]
  const float* start;   // null for zeros
  bool rectifies;
  float* out;
  int64_t apart, oh, ow, channels;
  float* memory;
};

// gradient[c][i][j][o] += sum over y, x of in[y + i - above][x + j - before][c] slope[y][x][o].
struct TiledGradient {
  Images in, slope;
  int64_t above, before;
  float* gradient;  // at points, [in.channels][slope.channels]
  float* memory;
};

// Where a tile's registers of channels lie at points: [36][kTiles] of them in whichever order.
struct AtPoints {
  float* of;
  int64_t point_apart, register_apart, tile_apart;
};

// sums[r][o] = sum over k of numbers[r][k] factors[k][o], or so much more.
struct Products {
  const float* numbers;
  int64_t count, together, apart;  // so many k, of which the numbers of so many lie together
  const float* factors;
  float* sums;
  int64_t channels;  // from one k, and one r, to the next
};

template <class M>
struct Winograd {
  using V = typename M::V;
  using P = Points<M>;

  // numbers[r][k] lies at r * row + k * step.
  template <int rows, int vectors, int row, int step, bool onto>
  static LDPK_CALL void block(const Products& a) {
    V sums[rows][vectors];
#pragma GCC unroll 32
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) sums[r][v] = onto ? M::load(a.sums + r * a.channels + v * M::width) : V{};
    }
    const float *group = a.numbers, *factors = a.factors;
    for (int64_t left = a.count; left > 0; left -= a.together, group += a.apart) {
      const float *numbers = group, *end = group + (left < a.together ? left : a.together) * step;
      for (; numbers < end; numbers += step, factors += a.channels) {
        V of[vectors];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) of[v] = M::load(factors + v * M::width);
#pragma GCC unroll 32
        for (int r = 0; r < rows; ++r) {
          const V number = M::all(numbers[r * row]);
#pragma GCC unroll 4
          for (int v = 0; v < vectors; ++v) sums[r][v] += number * of[v];
        }
      }
    }
#pragma GCC unroll 32
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) M::store(a.sums + r * a.channels + v * M::width, sums[r][v]);
    }
  }

  using Block = void (*)(const Products&);
  template <int vectors, class Numbers>
  struct Blocks;
  template <int vectors, int... i>
  struct Blocks<vectors, std::integer_sequence<int, i...>> {
    static constexpr Block of[] = {block<i + 1, vectors, M::width, 1, false>...};
  };

  // f(registers, o) for blocks of so many registers of channels from o on.
  template <class F>
  static LDPK_FN void over_channels(int64_t channels, F f) {
    int64_t o = 0;
    for (; o + M::kVectors * M::width <= channels; o += M::kVectors * M::width)
      f(std::integral_constant<int, M::kVectors>(), o);
    for (; o < channels; o += M::width) f(std::integral_constant<int, 1>(), o);
  }

  // The n by n numbers of an image from (y, x) on, with zeros around it, and how far their rows are apart.
  template <int n>
  static LDPK_FN const float* patch(const Images& a, int64_t b, int64_t y, int64_t x, float* memory, int64_t& row) {
    const float* image = a.of + b * a.apart;
    row = a.width * a.channels;
    if (y >= 0 && x >= 0 && y + n <= a.height && x + n <= a.width) return image + (y * a.width + x) * a.channels;
    memset(memory, 0, n * n * a.channels * sizeof(float));
    const int64_t first = x < 0 ? 0 : x, last = x + n < a.width ? x + n : a.width;
    for (int64_t i = 0; i < n; ++i) {
      if (y + i >= 0 && y + i < a.height && first < last)
        memcpy(memory + (i * n + first - x) * a.channels, image + ((y + i) * a.width + first) * a.channels,
               (last - first) * a.channels * sizeof(float));
    }
    row = n * a.channels;
    return memory;
  }

  // `count` tiles of n by n numbers from the first on, taken to points by f. A tile that lies not wholly in its image
  // is put together in `memory`.
  template <int n, class F>
  static LDPK_FN void tiles_to_points(const Images& a, const Tiling& tiles, int64_t first, int64_t count, F f,
                                      const AtPoints& points, float* memory) {
    for (int64_t t = 0; t < count; ++t) {
      int64_t row;
      const float* in = patch<n>(a, tiles.example(first + t), tiles.row(first + t) - tiles.above,
                                 tiles.column(first + t) - tiles.before, memory, row);
      float* out = points.of + t * points.tile_apart;
      for (int64_t c = 0; c < a.channels; c += M::width, out += points.register_apart)
        P::template both_ways<n, P::kSide>(
            f, [&](int i, int j) __attribute__((always_inline)) { return M::load(in + i * row + j * a.channels + c); },
            [&](int i, int j, V v)
                __attribute__((always_inline)) { M::store(out + (i * P::kSide + j) * points.point_apart, v); });
    }
  }

  template <int m>
  static LDPK_FN void tiles_from_points(const TiledConvolution& a, const Tiling& tiles, int64_t first, int64_t count,
                                        const AtPoints& points) {
    for (int64_t t = 0; t < count; ++t) {
      const int64_t y = tiles.row(first + t), x = tiles.column(first + t);
      float* out = a.out + tiles.example(first + t) * a.apart + (y * a.ow + x) * a.channels;
      const float* in = points.of + t * points.tile_apart;
      for (int64_t c = 0; c < a.channels; c += M::width, in += points.register_apart) {
        const V start = a.start ? M::load(a.start + c) : V{};
        P::template both_ways<P::kSide, m>(
            P::template of_sums<m>,
            [&](int i, int j)
                __attribute__((always_inline)) { return M::load(in + (i * P::kSide + j) * points.point_apart); },
            [&](int i, int j, V v) __attribute__((always_inline)) {
              v += start;
              if (y + i < a.oh && x + j < a.ow)
                M::store(out + (i * a.ow + j) * a.channels + c, a.rectifies ? M::rectified(v) : v);
            });
      }
    }
  }

  // Numbers that are taken one by one lie together by tiles, those of a register as neighbours.
  static LDPK_FN AtPoints as_numbers(float* of, int64_t channels) {
    return {of, kTiles * channels, kTiles * M::width, M::width};
  }
  static LDPK_FN AtPoints as_registers(float* of, int64_t channels) {
    return {of, kTiles * channels, M::width, channels};
  }

  template <int m>
  static LDPK_CALL void convolve(const TiledConvolution& a) {
    using All = std::make_integer_sequence<int, M::kColumns>;
    const Tiling tiles(a.above, a.before, a.oh, a.ow, m);
    const AtPoints numbers = as_numbers(a.memory, a.in.channels);
    const AtPoints sums = as_registers(a.memory + kPoints * kTiles * a.in.channels, a.channels);
    const Parts chunks(a.in.examples * tiles.of_example(), kTiles);
    for (int64_t chunk = 0, first = 0; chunk < chunks.count; first += chunks.size(chunk++)) {
      const int64_t count = chunks.size(chunk);
      tiles_to_points<P::kSide>(a.in, tiles, first, count, P::of_inputs, numbers, sums.of);
      const Parts parts(count, M::kColumns);
      for (int64_t p = 0; p < kPoints; ++p) {
        const float* kernel = a.kernel + p * Layer::points_apart(a.in.numbers, a.channels);
        over_channels(a.channels, [&](auto vectors, int64_t o) __attribute__((always_inline)) {
          for (int64_t part = 0, t = 0; part < parts.count; t += parts.size(part++))
            Blocks<vectors, All>::of[parts.size(part) - 1](
                {numbers.of + p * numbers.point_apart + t * numbers.tile_apart, a.in.numbers, M::width,
                 numbers.register_apart, kernel + o, sums.of + p * sums.point_apart + t * a.channels + o, a.channels});
        });
      }
      tiles_from_points<m>(a, tiles, first, count, sums);
    }
  }

  template <int m>
  static LDPK_CALL void gradient(const TiledGradient& a) {
    const int64_t channels = a.slope.channels;
    const Tiling tiles(a.above, a.before, a.slope.height, a.slope.width, m);
    const Tiling slope_tiles(0, 0, a.slope.height, a.slope.width, m);
    const AtPoints numbers = as_numbers(a.memory, a.in.channels);
    const AtPoints slopes = as_registers(a.memory + kPoints * kTiles * a.in.channels, channels);
    const Parts chunks(a.in.examples * tiles.of_example(), kTiles);
    for (int64_t chunk = 0, first = 0; chunk < chunks.count; first += chunks.size(chunk++)) {
      const int64_t count = chunks.size(chunk);
      tiles_to_points<P::kSide>(a.in, tiles, first, count, P::of_inputs, numbers, slopes.of);
      tiles_to_points<m>(a.slope, slope_tiles, first, count, P::template of_kernel<m>, slopes,
                         slopes.of + kPoints * slopes.point_apart);
      for (int64_t p = 0; p < kPoints; ++p) {
        float* gradient = a.gradient + p * Layer::points_apart(a.in.channels, channels);
        over_channels(channels, [&](auto vectors, int64_t o) __attribute__((always_inline)) {
          constexpr int rows = M::width * vectors <= M::kSums ? M::width : M::width / 2;
          for (int64_t c = 0; c < a.in.channels; c += rows)
            block<rows, vectors, 1, M::width, true>(
                {numbers.of + p * numbers.point_apart + c / M::width * numbers.register_apart + c % M::width, count,
                 count, 0, slopes.of + p * slopes.point_apart + o, gradient + c * channels + o, channels});
        });
      }
    }
  }

  // Kernels [inputs][n][n][channels] to points, and those of `count` inputs back.
  template <int n>
  static LDPK_CALL void to_points(const float* kernels, int64_t inputs, int64_t channels, float* points) {
    for (int64_t k = 0; k < inputs * channels; k += M::width) {
      const float* kernel = kernels + k / channels * n * n * channels + k % channels;
      P::template both_ways<n, P::kSide>(
          P::template of_kernel<n>,
          [&](int i, int j) __attribute__((always_inline)) { return M::load(kernel + (i * n + j) * channels); },
          [&](int i, int j, V v) __attribute__((always_inline)) {
            M::store(points + (i * P::kSide + j) * Layer::points_apart(inputs, channels) + k, v);
          });
    }
  }
  template <int n>
  static LDPK_CALL void from_points(const float* points, int64_t inputs, int64_t count, int64_t channels,
                                    float* kernels) {
    for (int64_t k = 0; k < count * channels; k += M::width) {
      float* kernel = kernels + k / channels * n * n * channels + k % channels;
      P::template both_ways<P::kSide, n>(
          P::template of_sums<n>,
          [&](int i, int j) __attribute__((always_inline)) {
            return M::load(points + (i * P::kSide + j) * Layer::points_apart(inputs, channels) + k);
          },
          [&](int i, int j, V v) __attribute__((always_inline)) { M::store(kernel + (i * n + j) * channels, v); });
    }
  }
};

}  // namespace ldpk
