// SPDX-License-Identifier: Apache-2.0
// The launches of a clipped sum and their memory.
#pragma once

#include "../dtype.h"
#include "../mechanisms/clipped_noise.h"
#include "../order.h"
#include "plan.h"

namespace ldpk {

constexpr int kClippedThreads = 256;
constexpr int kSumWarpsLog = 3, kSumWarps = 1 << kSumWarpsLog;
static_assert(kSumWarps * kLanes == kClippedThreads);

// Columns of a thread that adds noise: a block's normal pairs, or one discrete number.
template <class Cipher, bool grid>
constexpr int noise_columns = grid ? 1 : Cipher::block_words / 2;

// Sums of columns: for normal noise in the data's precision, for discrete noise integers in fp64.
template <bool grid, Dtype dtype>
using ClippedSum = std::conditional_t<grid || dtype == Dtype::f64, double, float>;

// What a matrix has beside its span. parts: sums of squares, [stretches, rows]; totals: sums of rows, `plan.columns`
// apart for each group.
struct ClippedLayer {
  double* parts;
  double* totals;
  double bound;
  int64_t layer;
};

LDPK_FN int64_t stretches_of(const Span& span) { return divided_up(span.numel, kStretch); }
// A thread block squares 64 pieces: those of one stretch, or of as many short rows as have no more.
LDPK_FN int pieces_of(const Span& span) {
  return static_cast<int>(divided_up(span.numel < kStretch ? span.numel : kStretch, kPiece));
}
LDPK_FN int rows_of_block(const Span& span) { return kPieces / pieces_of(span); }
// 2^this many warps of a thread block sum blocks of rows of the same columns, the others have other columns: no more
// than there are blocks of rows, so that few rows leave no warp idle.
LDPK_FN int warps_log_by_rows(int64_t rows) {
  int log = kSumWarpsLog;
  while (log > 0 && kRowBlock << (log - 1) >= rows) --log;
  return log;
}
// Columns of a thread block that sums rows, as a power of two: its warps' vectors of 16 bytes a lane.
LDPK_FN int columns_log_of_tile(int bytes, int64_t rows) {
  const int size_log = bytes == 8 ? 3 : bytes == 4 ? 2 : 1;
  return 5 + 4 - size_log + kSumWarpsLog - warps_log_by_rows(rows);
}
LDPK_FN int64_t tiles_of(const Span& span, int64_t rows) {
  const auto dtype = static_cast<Dtype>(span.dtype);
  const int log = columns_log_of_tile(dtype == Dtype::f64 ? 8 : dtype == Dtype::f32 ? 4 : 2, rows);
  return (span.numel + (int64_t{1} << log) - 1) >> log;
}

// A chunk is a thread block's work in one of the kernels.
struct ClippedPlan : Plan<ClippedLayer, 48> {
  int64_t rows, columns, layers;
  double* norms;   // [rows, layers]
  double* scales;  // the same
  ClippedNoise noise;
  double inverse_unit;  // exact: the unit is a power of two
  bool first, last;     // of the launches of a call
};
static_assert(sizeof(ClippedPlan) <= kShortPlan);

// The matrix of a thread block: span, layer, and which of the span's blocks it is.
struct ClippedBlock {
  const Span& span;
  const ClippedLayer& layer;
  int32_t number;

  LDPK_DEVICE ClippedBlock(const ClippedPlan& plan, int32_t block) : ClippedBlock(plan, block, plan.span_of(block)) {}

 private:
  LDPK_DEVICE ClippedBlock(const ClippedPlan& plan, int32_t block, int s)
      : span(plan.spans[s]), layer(plan.laws[s]), number(block - plan.first_chunk[s]) {}
};

// Whether a row is a single number, which has neither squares nor a scale.
inline bool is_single(const Span* spans, int64_t count) { return count == 1 && spans[0].numel == 1; }

struct ClippedCall {
  const Span* spans;
  int64_t count;
  const double* bounds;
  int64_t layers;  // 1, or one for each span
  int64_t rows;
  ClippedNoise noise;
  const uint32_t* key;
  double* norms;
  double* workspace;

  // launch(plan, blocks) for as many launches as the spans need; blocks_of(span) is how many a span has.
  template <class Blocks, class Launch>
  void each(Blocks blocks_of, Launch launch) const {
    ClippedPlan plan{};
    plan.key = key;
    plan.rows = rows;
    plan.layers = layers;
    plan.norms = norms;
    plan.scales = workspace;
    plan.noise = noise;
    plan.inverse_unit = noise.unit > 0 ? 1 / noise.unit : 0;
    for (int64_t s = 0; s < count; ++s) plan.columns += spans[s].numel;
    double* totals = workspace + (is_single(spans, count) ? 0 : rows * layers);
    double* parts = totals + row_groups(rows) * plan.columns;
    const auto layer_of = [&](int64_t i) {
      const int64_t layer = layers > 1 ? i : 0;
      const ClippedLayer one{parts, totals, bounds[layer], layer};
      parts += rows * stretches_of(spans[i]);
      totals += spans[i].numel;
      return one;
    };
    for_plans(
        plan, spans, count, layer_of, [&](const Span& span, const ClippedLayer&) { return blocks_of(span); },
        [&](ClippedPlan& filled, int32_t blocks, int64_t start) {
          filled.first = start == 0;
          filled.last = start + filled.count == count;
          launch(static_cast<const ClippedPlan&>(filled), blocks);
        });
  }

  // The kernels in order. A launcher has squares, norms and sums<grid>, or numbers<grid>, and noise<Cipher, grid>, each
  // of (plan, blocks); there may be no blocks.
  template <class Cipher, class Launcher>
  void run(const Launcher& launcher) const {
    noise.unit > 0 ? run<Cipher, true>(launcher) : run<Cipher, false>(launcher);
  }

 private:
  template <class Cipher, bool grid, class Launcher>
  void run(const Launcher& launcher) const {
    if (is_single(spans, count)) {
      each([&](const Span&) { return row_groups(rows); },
           [&](auto& plan, int32_t blocks) { launcher.template numbers<grid>(plan, blocks); });
    } else {
      each([&](const Span& s) { return divided_up(rows, rows_of_block(s)) * stretches_of(s); },
           [&](auto& plan, int32_t blocks) { launcher.squares(plan, blocks); });
      each([](const Span&) { return 0; },
           [&](auto& plan, int32_t) { launcher.norms(plan, static_cast<int32_t>(divided_up(rows, kClippedThreads))); });
      each([&](const Span& s) { return tiles_of(s, rows) * row_groups(rows); },
           [&](auto& plan, int32_t blocks) { launcher.template sums<grid>(plan, blocks); });
    }
    each([](const Span& s) { return divided_up(s.numel, kClippedThreads * noise_columns<Cipher, grid>); },
         [&](auto& plan, int32_t blocks) { launcher.template noise<Cipher, grid>(plan, blocks); });
  }
};

}  // namespace ldpk
