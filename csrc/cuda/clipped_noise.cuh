// SPDX-License-Identifier: Apache-2.0
// Clipped and noised sums in CUDA, with the CPU's additions in their order, so with its bits. Squares: four threads
// take the 16 lanes of a piece. Sums: the eight warps of a thread block take eight blocks of 64 rows of the same
// columns at once, whose sums are then added in order; where there are fewer blocks, other columns too.
#pragma once

#include "../chacha.h"
#include "../philox.h"
#include "clipped_norms.cuh"
#include "clipped_numbers.cuh"

namespace ldpk {

constexpr int kSumBlocks = 4;  // thread blocks that a multiprocessor has at once: 64 registers a thread

template <class Sum, int columns>
struct SumsTile {
  Sum scales[kSumWarps][kRowBlock];
  Sum sums[kSumWarps][columns];
};

// A thread of the second pass: stage, barrier, accumulate, barrier, add, for every round of blocks of rows. There is
// one round where not all of the warps have the same columns.
template <bool grid, Dtype dtype>
struct SumsThread {
  using Bits = BitsOf<dtype>;
  using Sum = ClippedSum<grid, dtype>;
  static constexpr int width = 16 / sizeof(Bits), columns = kLanes * width;  // of a thread's vector, of a warp
  static constexpr int rows_at_once = 8, words_at_once = 16;
  using Tile = SumsTile<Sum, columns>;
  using Vector = Few<Bits, width>;

  const ClippedPlan& plan;
  const Span& span;
  const ClippedLayer& layer;
  const int thread, warp, lane;
  const int deep;       // 2^deep warps have the same columns
  int32_t group, rows;  // of this group
  int64_t column;       // the thread block's first
  double total = 0;     // of the column that the thread adds

  LDPK_DEVICE SumsThread(const ClippedPlan& plan, const ClippedBlock& block, int thread)
      : plan(plan),
        span(block.span),
        layer(block.layer),
        thread(thread),
        warp(thread / kLanes),
        lane(thread % kLanes),
        deep(warps_log_by_rows(plan.rows)) {
    const int32_t tiles = static_cast<int32_t>(tiles_of(span, plan.rows));
    group = block.number / tiles;
    column = int64_t{block.number % tiles} << columns_log_of_tile(sizeof(Bits), plan.rows);
    const int64_t left = plan.rows - group * kRowGroup;
    rows = static_cast<int32_t>(left < kRowGroup ? left : kRowGroup);
  }

  // One at least: no rows have sums, too.
  LDPK_DEVICE int rounds() const { return 1 + ((rows > 0 ? rows - 1 : 0) / static_cast<int>(kRowBlock) >> deep); }

  LDPK_DEVICE void stage(int round, Tile& tile) const {
    const int first = first_row(round, warp_of_rows());
    const double* scales = plan.scales + group * kRowGroup * plan.layers + layer.layer;
#pragma unroll
    for (int i = lane; i < kRowBlock; i += kLanes) {
      const double scale = first + i < rows ? scales[(first + i) * plan.layers] : 0.0;
      tile.scales[warp][i] = grid ? static_cast<Sum>(scale * plan.inverse_unit) : at_most(Sum{}, scale);
    }
  }

  LDPK_DEVICE void accumulate(int round, Tile& tile) const {
    const int first = first_row(round, warp_of_rows());
    const int count = rows - first < kRowBlock ? rows - first : static_cast<int>(kRowBlock);
    const int64_t own = column + (warp >> deep) * columns;  // the warp's first column
    const int64_t inside = span.numel - own;
    const Bits* x = reinterpret_cast<const Bits*>(span.data) + (group * kRowGroup + first) * span.numel + own;
    Sum sums[width] = {};
    const bool aligned = aligned_rows<Bits, width>(span);
    if (aligned) {
      if (lane * width < inside) {
        add_rows<rows_at_once>(x + lane * width, count, tile.scales[warp], sums,
                               [](const Bits* row, Bits(&values)[width]) {
                                 *reinterpret_cast<Vector*>(values) = *reinterpret_cast<const Vector*>(row);
                               });
      }
    } else {  // column `lane` and every 32nd from there, so that a warp reads what lies together
      add_rows<words_at_once / width>(x + lane, count, tile.scales[warp], sums,
                                      [&](const Bits* row, Bits(&values)[width]) {
#pragma unroll
                                        for (int v = 0; v < width; ++v)
                                          values[v] = v * kLanes + lane < inside ? row[v * kLanes] : Bits{0};
                                      });
    }
#pragma unroll
    for (int v = 0; v < width; ++v) tile.sums[warp][aligned ? lane * width + v : v * kLanes + lane] = sums[v];
  }

  LDPK_DEVICE void add(int round, const Tile& tile) {
    const bool last = round + 1 == rounds();
    for (int i = thread; i < columns * kSumWarps >> deep; i += kClippedThreads) {  // once where there are more rounds
      for (int w = 0; w < 1 << deep && first_row(round, w) < rows; ++w)
        total += tile.sums[(i / columns << deep) + w][i % columns];
      if (!last) continue;
      if (column + i < span.numel) layer.totals[group * plan.columns + column + i] = total;
      total = 0;
    }
  }

 private:
  LDPK_DEVICE int warp_of_rows() const { return warp & ((1 << deep) - 1); }
  LDPK_DEVICE int first_row(int round, int w) const { return ((round << deep) + w) * static_cast<int>(kRowBlock); }

  // A row of scale 0 may hold NaN: it is left out.
  static LDPK_DEVICE void add(Sum& sum, Bits bits, Sum scale) {
    const Sum product = static_cast<Sum>(Element<dtype>::number(bits)) * scale;
    if (scale != 0) sum += grid ? trunc(product) : product;
  }

  // So many rows are loaded before the first of them is added; the last row stands for those that there are not.
  template <int many, class Load>
  LDPK_DEVICE void add_rows(const Bits* x, int count, const Sum* scales, Sum (&sums)[width], Load load) const {
#pragma unroll 1
    for (int row = 0; row < count; row += many, x += many * span.numel) {
      alignas(16) Bits values[many][width];
#pragma unroll
      for (int r = 0; r < many; ++r) load(x + (row + r < count ? r : count - 1 - row) * span.numel, values[r]);
#pragma unroll
      for (int r = 0; r < many; ++r) {
        const Sum scale = row + r < count ? scales[row + r] : Sum{0};
#pragma unroll
        for (int v = 0; v < width; ++v) add(sums[v], values[r][v], scale);
      }
    }
  }
};

// Columns of a thread: a whole block of normal pairs, or one discrete number.
template <class Cipher, bool grid>
__global__ void __launch_bounds__(kClippedThreads) clipped_noise_kernel(const __grid_constant__ ClippedPlan plan) {
  constexpr int columns = noise_columns<Cipher, grid>;
  const ClippedBlock s(plan, blockIdx.x);
  const int64_t begin = (int64_t{s.number} * kClippedThreads + threadIdx.x) * columns;
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
#pragma unroll 8
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

// `served`: the dtypes, of which the plan's spans are.
template <bool grid, Dtype... served>
__global__ void __launch_bounds__(kClippedThreads, kSumBlocks)
    clipped_sums_kernel(const __grid_constant__ ClippedPlan plan) {
  __shared__ alignas(16) unsigned char memory[sizeof(typename SumsThread<grid, Dtype::bf16>::Tile)];
  const ClippedBlock s(plan, blockIdx.x);
  with_dtype_of<served...>(s.span, [&](auto dtype) {
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
  });
}

}  // namespace ldpk
