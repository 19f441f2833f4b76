// SPDX-License-Identifier: Apache-2.0
// Clipped and noised sums in CUDA, with the CPU's additions in their order, so with its bits. Squares: four threads
// take the 16 lanes of a piece. Sums: the eight warps of a thread block take eight blocks of 64 rows of the same
// columns at once, whose sums are then added in order. All but the kernels is __host__ __device__: tests/cuda runs it
// on the host.
#pragma once

#include "../chacha.h"
#include "../philox.h"
#include "clipped_norms.cuh"

namespace ldpk {

constexpr int kSumWarps = kClippedThreads / kLanes;

// Sums of one tile's columns: for normal noise in the data's precision, for discrete noise integers in fp64.
template <bool grid, Dtype dtype>
using ClippedSum = std::conditional_t<grid || dtype == Dtype::f64, double, float>;

template <class Sum, int columns>
struct SumsTile {
  Sum scales[kSumWarps][kRowBlock];
  Sum sums[kSumWarps][columns];
};

// A thread of the second pass: stage, barrier, accumulate, barrier, add, for every round of eight blocks of rows.
template <bool grid, Dtype dtype>
struct SumsThread {
  using Bits = BitsOf<dtype>;
  using Sum = ClippedSum<grid, dtype>;
  static constexpr int width = 16 / sizeof(Bits), columns = kLanes * width, rows_at_once = 8;
  using Tile = SumsTile<Sum, columns>;
  using Vector = Few<Bits, width>;

  const ClippedPlan& plan;
  const Span& span;
  const ClippedLayer& layer;
  const int thread, warp, lane;
  const bool aligned;
  int64_t group, column, row_begin, row_end;
  double total = 0;  // of column `thread`

  LDPK_FN SumsThread(const ClippedPlan& plan, const ClippedBlock& block, int thread)
      : plan(plan),
        span(block.span),
        layer(block.layer),
        thread(thread),
        warp(thread / kLanes),
        lane(thread % kLanes),
        aligned(aligned_rows<Bits, width>(span)) {
    const int32_t tiles = static_cast<int32_t>(divided_up(span.numel, columns));
    group = block.number / tiles;
    column = int64_t{block.number % tiles} * columns;
    row_begin = group * kRowGroup;
    row_end = plan.rows - row_begin < kRowGroup ? plan.rows : row_begin + kRowGroup;
  }

  LDPK_FN int rounds() const { return static_cast<int>(divided_up(row_end - row_begin, kSumWarps * kRowBlock)); }

  LDPK_FN void stage(int round, Tile& tile) const {
#pragma unroll
    for (int i = lane; i < kRowBlock; i += kLanes) {
      const int64_t row = first_row(round, warp) + i;
      const double scale = row < row_end ? plan.scales[row * plan.layers + layer.layer] : 0.0;
      tile.scales[warp][i] = grid ? static_cast<Sum>(scale * plan.inverse_unit) : scale_as(Sum{}, scale);
    }
  }

  LDPK_FN void accumulate(int round, Tile& tile) const {
    const int64_t first = first_row(round, warp);
    const int64_t left = row_end - first;
    const int count = static_cast<int>(left < kRowBlock ? left : kRowBlock);
    const Bits* x = reinterpret_cast<const Bits*>(span.data) + first * span.numel;
    Sum sums[width] = {};
    if (aligned) {
      const int64_t own = column + lane * width;
      if (own < span.numel) add_rows(x + own, count, tile.scales[warp], sums);
    } else {  // column `lane` and every 32nd from there, so that a warp reads what lies together
#pragma unroll
      for (int v = 0; v < width; ++v) {
        const int64_t own = column + v * kLanes + lane;
        for (int row = 0; row < count && own < span.numel; ++row)
          add(sums[v], x[row * span.numel + own], tile.scales[warp][row]);
      }
    }
#pragma unroll
    for (int v = 0; v < width; ++v) tile.sums[warp][aligned ? lane * width + v : v * kLanes + lane] = sums[v];
  }

  LDPK_FN void add(int round, const Tile& tile) {
    if (thread >= columns) return;
    for (int w = 0; w < kSumWarps && first_row(round, w) < row_end; ++w) total += tile.sums[w][thread];
  }

  LDPK_FN void finish() const {
    if (thread < columns && column + thread < span.numel) layer.totals[group * plan.columns + column + thread] = total;
  }

 private:
  LDPK_FN int64_t first_row(int round, int w) const { return row_begin + (int64_t{round} * kSumWarps + w) * kRowBlock; }

  // A row of scale 0 may hold NaN: it is left out.
  static LDPK_FN void add(Sum& sum, Bits bits, Sum scale) {
    const Sum product = static_cast<Sum>(Element<dtype>::number(bits)) * scale;
    if (scale != 0) sum += grid ? trunc(product) : product;
  }

  // Rows are loaded by eights, before the first is added.
  LDPK_FN void add_rows(const Bits* x, int count, const Sum* scales, Sum (&sums)[width]) const {
    for (int row = 0; row < count; row += rows_at_once) {
      Vector vectors[rows_at_once];
#pragma unroll
      for (int r = 0; r < rows_at_once; ++r) {
        const int inside = row + r < count ? row + r : count - 1;
        vectors[r] = *reinterpret_cast<const Vector*>(x + inside * span.numel);
      }
#pragma unroll
      for (int r = 0; r < rows_at_once; ++r) {
        const Sum scale = row + r < count ? scales[row + r] : Sum{0};
#pragma unroll
        for (int v = 0; v < width; ++v) add(sums[v], vectors[r].values[v], scale);
      }
    }
  }
};

// Columns of a thread: a whole block of normal pairs, or one discrete number.
template <class Cipher, bool grid>
LDPK_FN void noise_of_columns(const ClippedPlan& plan, int32_t block, int thread) {
  constexpr int columns = noise_columns<Cipher, grid>;
  const ClippedBlock s(plan, block);
  const int64_t begin = (int64_t{s.number} * kClippedThreads + thread) * columns;
  if (begin >= s.span.numel) return;
  const uint64_t element = static_cast<uint64_t>(s.span.first + begin);
  const ClippedNoise& noise = plan.noise;
  const Key key = load_key<Cipher>(plan.key);
  double drawn[columns] = {};
  if constexpr (grid) {
    if (noise.grid_std > 0) {
      const auto words_of = [&](uint32_t stream, uint32_t(&out)[Cipher::block_words]) {
        Cipher::block(key, stream, 0, element, out);
      };
      ElementWords<Cipher, decltype(words_of)> words(words_of);
      drawn[0] = static_cast<double>(discrete_gaussian(words, static_cast<uint32_t>(noise.grid_std)));
    }
  } else if (noise.stddev > 0) {
    uint32_t words[Cipher::block_words];
    Cipher::block(key, 0, 0, element / columns, words);
#pragma unroll
    for (int i = 0; i < columns; i += 2) normal_pair(words + 2 * i, drawn[i], drawn[i + 1]);
  }
#pragma unroll
  for (int i = 0; i < columns; ++i) {
    const int64_t column = begin + i;
    if (column >= s.span.numel) break;
    double total = s.layer.totals[column];
    for (int64_t g = 1; g < row_groups(plan.rows); ++g) total += s.layer.totals[g * plan.columns + column];
    if constexpr (grid) {
      total = (total + drawn[i]) * noise.unit;
    } else if (noise.stddev > 0) {
      total += noise.stddev * drawn[i];
    }
    total /= noise.divisor;
    if (static_cast<Dtype>(s.span.dtype) == Dtype::f64) {
      reinterpret_cast<double*>(s.span.out)[column] = total;
    } else {
      reinterpret_cast<float*>(s.span.out)[column] = static_cast<float>(total);
    }
  }
}

#if defined(__CUDACC__)
template <bool grid>
__global__ void __launch_bounds__(kClippedThreads) clipped_sums_kernel(const __grid_constant__ ClippedPlan plan) {
  __shared__ alignas(16) unsigned char memory[sizeof(typename SumsThread<grid, Dtype::bf16>::Tile)];
  const ClippedBlock s(plan, blockIdx.x);
  with_dtype(s.span, [&](auto dtype) {
    using Thread = SumsThread<grid, decltype(dtype)::value>;
    static_assert(sizeof(typename Thread::Tile) <= sizeof(memory));
    auto& tile = *reinterpret_cast<typename Thread::Tile*>(memory);
    Thread thread(plan, s, threadIdx.x);
    for (int round = 0; round < thread.rounds(); ++round) {
      thread.stage(round, tile);
      __syncthreads();
      thread.accumulate(round, tile);
      __syncthreads();
      thread.add(round, tile);
    }
    thread.finish();
  });
}

template <class Cipher, bool grid>
__global__ void __launch_bounds__(kClippedThreads) clipped_noise_kernel(const __grid_constant__ ClippedPlan plan) {
  noise_of_columns<Cipher, grid>(plan, blockIdx.x, threadIdx.x);
}
#endif

}  // namespace ldpk
