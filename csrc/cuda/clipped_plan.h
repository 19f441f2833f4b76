// SPDX-License-Identifier: Apache-2.0
// The launches of a clipped sum and their memory: plain C++, so that the tests can walk them without a GPU.
#pragma once

#include <stdexcept>

#include "../mechanisms/clipped_noise.h"

namespace ldpk {

constexpr int kClippedThreads = 256;
constexpr int kClippedSpans = 48;  // of a launch

// The order of additions is the CPU's (docs/mechanisms/clipped_noise.md).
constexpr int64_t kPiece = 1024;
constexpr int64_t kStretch = 1 << 16;
constexpr int kPieces = 64;  // of a stretch
constexpr int64_t kRowBlock = 64;
constexpr int64_t kRowGroup = 4096;

LDPK_FN int64_t divided_up(int64_t n, int64_t by) { return (n + by - 1) / by; }
LDPK_FN int64_t row_groups(int64_t rows) { return rows > kRowGroup ? divided_up(rows, kRowGroup) : 1; }

// Columns of a thread that adds noise: a block's normal pairs, or one discrete number.
template <class Cipher, bool grid>
constexpr int noise_columns = grid ? 1 : Cipher::block_words / 2;

// One matrix. parts: sums of squares, [stretches, rows]; totals: sums of rows, `plan.columns` apart for each group.
struct ClippedSpan {
  Span span;
  double* parts;
  double* totals;
  double bound;
  int64_t layer;

  LDPK_FN int64_t stretches() const { return divided_up(span.numel, kStretch); }
  // A thread block squares 64 pieces: those of one stretch, or of as many short rows as have no more.
  LDPK_FN int pieces() const {
    return static_cast<int>(divided_up(span.numel < kStretch ? span.numel : kStretch, kPiece));
  }
  LDPK_FN int rows_of_block() const { return kPieces / pieces(); }
  LDPK_FN int columns_of_tile() const {
    constexpr int bytes = 32 * 16;  // a warp's vectors
    return static_cast<Dtype>(span.dtype) == Dtype::f64   ? bytes / 8
           : static_cast<Dtype>(span.dtype) == Dtype::f32 ? bytes / 4
                                                          : bytes / 2;
  }
};

// Block b of a launch belongs to the last span s with first_block[s] <= b.
struct ClippedPlan {
  const uint32_t* key;
  int64_t rows, columns, layers;
  double* norms;   // [rows, layers]
  double* scales;  // the same
  ClippedNoise noise;
  double inverse_unit;  // exact: the unit is a power of two
  bool first, last;     // of the launches of a call
  int32_t count;
  int32_t first_block[kClippedSpans + 1];
  ClippedSpan spans[kClippedSpans];

  LDPK_FN const ClippedSpan& span_of(int32_t block) const {
    int s = 0;
    while (s + 1 < count && first_block[s + 1] <= block) ++s;
    return spans[s];
  }
  LDPK_FN int32_t within(const ClippedSpan& s, int32_t block) const { return block - first_block[&s - spans]; }
};
static_assert(sizeof(ClippedPlan) <= 4096, "the most that every CUDA passes by value");

// fp64 numbers of memory that a call needs besides norms and outputs.
inline int64_t clipped_workspace(const Span* spans, int64_t count, int64_t rows, int64_t layers) {
  int64_t numbers = rows * layers;
  for (int64_t s = 0; s < count; ++s)
    numbers += rows * divided_up(spans[s].numel, kStretch) + row_groups(rows) * spans[s].numel;
  return numbers;
}

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
    double* totals = workspace + rows * layers;
    double* parts = totals + row_groups(rows) * plan.columns;
    for (int64_t start = 0; start < count; start += kClippedSpans) {
      plan.first = start == 0;
      plan.last = start + kClippedSpans >= count;
      plan.count = static_cast<int32_t>(plan.last ? count - start : kClippedSpans);
      int64_t blocks = 0;
      for (int i = 0; i < plan.count; ++i) {
        const int64_t layer = layers > 1 ? start + i : 0;
        ClippedSpan& span = plan.spans[i] = {spans[start + i], parts, totals, bounds[layer], layer};
        parts += rows * span.stretches();
        totals += span.span.numel;
        plan.first_block[i] = static_cast<int32_t>(blocks);
        if (span.span.numel > 0) blocks += blocks_of(span);
        if (blocks > INT32_MAX) throw std::invalid_argument("too many elements for one launch");
      }
      plan.first_block[plan.count] = static_cast<int32_t>(blocks);
      launch(static_cast<const ClippedPlan&>(plan), static_cast<int32_t>(blocks));
    }
  }

  // The kernels in order. A launcher has squares, norms, sums<grid> and noise<Cipher, grid>, each of (plan, blocks).
  template <class Cipher, class Launcher>
  void run(const Launcher& launcher) const {
    noise.unit > 0 ? run<Cipher, true>(launcher) : run<Cipher, false>(launcher);
  }

 private:
  template <class Cipher, bool grid, class Launcher>
  void run(const Launcher& launcher) const {
    const auto some = [](auto launch) {
      return [launch](const ClippedPlan& plan, int32_t blocks) {
        if (blocks > 0) launch(plan, blocks);
      };
    };
    each([&](const ClippedSpan& s) { return divided_up(rows, s.rows_of_block()) * s.stretches(); },
         some([&](auto& plan, int32_t blocks) { launcher.squares(plan, blocks); }));
    each([](const ClippedSpan&) { return 0; },
         [&](auto& plan, int32_t) {
           if (rows > 0) launcher.norms(plan, static_cast<int32_t>(divided_up(rows, kClippedThreads)));
         });
    each([&](const ClippedSpan& s) { return divided_up(s.span.numel, s.columns_of_tile()) * row_groups(rows); },
         some([&](auto& plan, int32_t blocks) { launcher.template sums<grid>(plan, blocks); }));
    each([](const ClippedSpan& s) { return divided_up(s.span.numel, kClippedThreads * noise_columns<Cipher, grid>); },
         some([&](auto& plan, int32_t blocks) { launcher.template noise<Cipher, grid>(plan, blocks); }));
  }
};

}  // namespace ldpk
