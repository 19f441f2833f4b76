// SPDX-License-Identifier: Apache-2.0
// Clipped and noised sums on the CPU: squares of a stretch of a row, scaled sums of columns, noise. The order of every
// addition is fixed below and depends on neither threads nor registers. docs/mechanisms/clipped_noise.md.
//
// Here a span is a matrix: `numel` columns, `first` where its columns start in the stream.
#pragma once

#include <cmath>

#include "dispatch.h"
#include "normals.h"
#include "skeleton.h"
#include "sums.h"

namespace ldpk {

// The sum of squares of elements [0, n), in fp64; pieces are added in order.
template <class Lanes, Dtype dtype>
double squares_of(const BitsOf<dtype>* in, int64_t n) {
  FloatOf<dtype> buffer[kPiece];
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kPiece) {
    const int64_t count = n - begin < kPiece ? n - begin : kPiece;
    const FloatOf<dtype>* x = widened<Lanes, dtype>(in + begin, count, buffer);
    total += product_of<Lanes>(x, x, count);
  }
  return total;
}

// acc[j] += scale * row[j] for eight rows, one after the other.
template <class Lanes, Dtype dtype>
LDPK_FN void add_eight(const BitsOf<dtype>* const* rows, const FloatOf<dtype>* scales, int64_t n,
                       FloatOf<dtype>* __restrict acc) {
  int64_t j = 0;
  if constexpr (dtype == Dtype::f64) {
    const double* x[8];
    for (int r = 0; r < 8; ++r) x[r] = reinterpret_cast<const double*>(rows[r]);
    constexpr int width = Lanes::blocks > 1 ? Lanes::blocks : 2;
    typedef double Doubles __attribute__((vector_size(8 * width)));
    for (; j + width <= n; j += width) {
      Doubles sum, value;
      memcpy(&sum, acc + j, sizeof(sum));
#pragma GCC unroll 8
      for (int r = 0; r < 8; ++r) {
        memcpy(&value, x[r] + j, sizeof(value));
        sum += value * scales[r];
      }
      memcpy(acc + j, &sum, sizeof(sum));
    }
  } else {
    for (; j + Lanes::count <= n; j += Lanes::count) {
      typename Lanes::f32 sum;
      memcpy(&sum, acc + j, sizeof(sum));
#pragma GCC unroll 8
      for (int r = 0; r < 8; ++r) sum += Element<dtype>::template load<Lanes>(rows[r] + j) * scales[r];
      memcpy(acc + j, &sum, sizeof(sum));
    }
  }
  for (; j < n; ++j) {
    for (int r = 0; r < 8; ++r) acc[j] += Element<dtype>::template load<ScalarLanes>(rows[r] + j) * scales[r];
  }
}

template <class Lanes, Dtype dtype>
LDPK_FN void add_one(const BitsOf<dtype>* row, FloatOf<dtype> scale, int64_t n, FloatOf<dtype>* __restrict acc,
                     FloatOf<dtype>* buffer) {
  const FloatOf<dtype>* __restrict x = widened<Lanes, dtype>(row, n, buffer);
  for (int64_t j = 0; j < n; ++j) acc[j] += x[j] * scale;
}

// total[j] = sum over the rows [row, row_end) of scales(i) * x[i][begin + j]. A row of scale 0 is not read.
// unit = 0: rows are added in order in blocks of 64, in fp32 (fp64 for fp64), and the blocks in fp64. unit > 0: each
// product in units, truncated towards zero, is an integer, and sums of integers below 2^53 are exact in fp64.
template <class Lanes, Dtype dtype>
void sum_rows(const Span& span, const RowScales& scales, double unit, int64_t row, int64_t row_end, int64_t begin,
              int64_t end, double* __restrict total) {
  using Bits = BitsOf<dtype>;
  const Bits* data = reinterpret_cast<const Bits*>(span.data) + begin;
  const int64_t n = end - begin;
  FloatOf<dtype> acc[kColumns], buffer[kColumns];
  for (int64_t j = 0; j < n; ++j) total[j] = 0;
  for (; row < row_end; row += kRowBlock) {
    const Bits* rows[kRowBlock];
    double scale[kRowBlock];
    int count = 0;
    for (int64_t i = row; i < row_end && i < row + kRowBlock; ++i) {
      const double s = scales(i);
      if (s == 0) continue;
      rows[count] = data + i * span.numel;
      scale[count++] = s;
    }
    if (unit > 0) {
      for (int r = 0; r < count; ++r) {
        const FloatOf<dtype>* __restrict x = widened<Lanes, dtype>(rows[r], n, buffer);
        const double s = scale[r] / unit;
        for (int64_t j = 0; j < n; ++j) total[j] += __builtin_trunc(x[j] * s);
      }
    } else {
      FloatOf<dtype> narrow[kRowBlock];
      for (int r = 0; r < count; ++r) narrow[r] = at_most(FloatOf<dtype>{}, scale[r]);
      for (int64_t j = 0; j < n; ++j) acc[j] = 0;
      int r = 0;
      for (; r + 8 <= count; r += 8) add_eight<Lanes, dtype>(rows + r, narrow + r, n, acc);
      for (; r < count; ++r) add_one<Lanes, dtype>(rows[r], narrow[r], n, acc, buffer);
      for (int64_t j = 0; j < n; ++j) total[j] += acc[j];
    }
  }
}

// out[i * stride] = the sum of squares of elements [begin, end) of row i, for rows [row, row_end).
template <class Lanes>
void row_squares(const Span& span, int64_t row, int64_t row_end, int64_t begin, int64_t end, double* out,
                 int64_t stride) {
  with_dtype(span, [&](auto dtype) {
    const auto* data = reinterpret_cast<const BitsOf<dtype()>*>(span.data);
    for (; row < row_end; ++row)
      out[row * stride] = squares_of<Lanes, dtype()>(data + row * span.numel + begin, end - begin);
  });
}

// The scales of rows [row, row_end), `layers` of them in a row. A row that is not finite in one is left out of all.
template <class Lanes>
void row_scales(const double* bounds, int64_t layers, int64_t row, int64_t row_end, const double* norms,
                double* __restrict scales) {
  for (; row < row_end; ++row) {
    bool finite = true;
    for (int64_t i = row * layers; i < (row + 1) * layers; ++i) {
      scales[i] = row_scale(norms[i], bounds[i - row * layers]);
      finite &= norms[i] < static_cast<double>(INFINITY);
    }
    for (int64_t i = row * layers; !finite && i < (row + 1) * layers; ++i) scales[i] = 0;
  }
}

template <class Lanes>
void row_sums(const Span& span, const RowScales& scales, double unit, int64_t row, int64_t row_end, int64_t begin,
              int64_t end, double* total) {
  with_dtype(span, [&](auto dtype) { sum_rows<Lanes, dtype()>(span, scales, unit, row, row_end, begin, end, total); });
}

// total += noise of columns from `element` on, which is even.
template <class Lanes, class Cipher>
void add_normal(double stddev, const Key& key, uint64_t element, int64_t n, double* total) {
  double g[kNormals];
  for (int64_t begin = 0; begin < n; begin += kNormals) {
    const int64_t count = n - begin < kNormals ? n - begin : kNormals;
    normals<Lanes, Cipher>(key, 0, element + begin, count, g);
    for (int64_t i = 0; i < count; ++i) total[begin + i] += stddev * g[i];
  }
}

// The same for discrete noise. An element's first 32 words, which are enough for most, are computed for a tile at once.
template <class Lanes, class Cipher>
void add_integers(uint32_t grid_std, const Key& key, uint64_t element, int64_t n, double* total) {
  constexpr int64_t tile = 64;
  constexpr int size = Cipher::block_words, streams = 32 / size;
  alignas(64) uint32_t stream[tile * size + kStepBytes / 4];
  uint32_t ready[tile][streams * size];
  for (int64_t begin = 0; begin < n; begin += tile) {
    const int64_t count = n - begin < tile ? n - begin : tile;
    for (int s = 0; s < streams; ++s) {
      fill<Lanes>(Cipher{}, key, s, element + begin, count, stream);
      for (int64_t i = 0; i < count; ++i) memcpy(ready[i] + s * size, stream + i * size, 4 * size);
    }
    for (int64_t i = 0; i < count; ++i) {
      const auto block = [&](uint32_t s, uint32_t(&out)[size]) {
        lone_block<Lanes>(Cipher{}, key, s, element + begin + i, out);
      };
      ElementWords<Cipher, decltype(block)> words(block, ready[i], streams * size);
      total[begin + i] += static_cast<double>(discrete_gaussian(words, grid_std));
    }
  }
}

template <class Lanes, class Cipher>
void noise_columns(const Span& span, const ClippedNoise& noise, const Key& key, int64_t begin, int64_t n,
                   double* total) {
  const uint64_t element = static_cast<uint64_t>(span.first + begin);
  if (noise.unit > 0) {
    if (noise.grid_std > 0) add_integers<Lanes, Cipher>(static_cast<uint32_t>(noise.grid_std), key, element, n, total);
    for (int64_t j = 0; j < n; ++j) total[j] *= noise.unit;
  } else if (noise.stddev > 0) {
    add_normal<Lanes, Cipher>(noise.stddev, key, element, n, total);
  }
  for (int64_t j = 0; j < n; ++j) total[j] /= noise.divisor;
  if (static_cast<Dtype>(span.dtype) == Dtype::f64) {
    memcpy(reinterpret_cast<double*>(span.out) + begin, total, n * sizeof(double));
  } else {
    float* out = reinterpret_cast<float*>(span.out) + begin;
    for (int64_t j = 0; j < n; ++j) out[j] = static_cast<float>(total[j]);
  }
}

// Writes (total + noise) / divisor to columns [begin, begin + n) of span.out: fp64 for fp64, else fp32.
template <class Lanes>
void noised(const Span& span, const ClippedNoise& noise, const Key& key, int64_t begin, int64_t n, double* total) {
  with_cipher(key, [&](auto cipher) { noise_columns<Lanes, decltype(cipher)>(span, noise, key, begin, n, total); });
}

}  // namespace ldpk
