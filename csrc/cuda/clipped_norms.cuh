// SPDX-License-Identifier: Apache-2.0
// The first pass of clipped sums in CUDA: squares of rows, four threads for the 16 lanes of a piece; norms and scales.
#pragma once

#include "clipped_plan.h"

namespace ldpk {

template <class Bits, int count>
struct alignas(sizeof(Bits) * count > 16 ? 16 : sizeof(Bits) * count) Few {
  Bits values[count];
};

// Whether every row's elements 0, count, 2 count, ... begin an aligned Few.
template <class Bits, int count>
LDPK_DEVICE bool aligned_rows(const Span& span) {
  return span.data % alignof(Few<Bits, count>) == 0 && span.numel % count == 0;
}

constexpr int kTileWidth = 17;  // of the 16 lanes of a piece: neighbours lie in other banks

struct SquaresTile {
  double sums[kPieces][kTileWidth];
};

// A thread of the first kernel, in three steps with barriers between them.
struct SquaresThread {
  const ClippedPlan& plan;
  const ClippedBlock block;
  const Span& span;
  const int thread;
  const int pieces;
  int64_t stretch, row;

  LDPK_DEVICE SquaresThread(const ClippedPlan& plan, int32_t number, int thread)
      : plan(plan), block(plan, number), span(block.span), thread(thread), pieces(pieces_of(span)) {
    const int32_t stretches = static_cast<int32_t>(stretches_of(span));
    stretch = block.number % stretches;
    row = int64_t{block.number / stretches} * rows_of_block(span);
  }

  // Lanes 4 q, ..., 4 q + 3 of piece `slot`.
  LDPK_DEVICE void square(SquaresTile& tile) const {
    const int slot = thread / 4, q = thread % 4;
    const int64_t own = row + slot / pieces;
    double sums[4] = {};
    if (slot / pieces < rows_of_block(span) && own < plan.rows) {
      with_dtype(span, [&](auto dtype) {
        constexpr Dtype d = decltype(dtype)::value;
        using Bits = BitsOf<d>;
        const int64_t begin = stretch * kStretch + slot % pieces * kPiece;
        const int64_t left = span.numel - begin;
        const int count = static_cast<int>(left < kPiece ? left : kPiece) - 4 * q;  // from the first of the thread
        const Bits* x = reinterpret_cast<const Bits*>(span.data) + (own * span.numel + begin + 4 * q);
        const auto add = [&](int lane, Bits bits) {
          const double v = static_cast<double>(Element<d>::number(bits));
          sums[lane] += v * v;
        };
        if (aligned_rows<Bits, 4>(span)) {
#pragma unroll 8
          for (int i = 0; i < count; i += 16) {
            const Few<Bits, 4> few = *reinterpret_cast<const Few<Bits, 4>*>(x + i);
#pragma unroll
            for (int lane = 0; lane < 4; ++lane) add(lane, few.values[lane]);
          }
        } else {
#pragma unroll 2
          for (int i = 0; i < count; i += 16) {
#pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              if (i + lane < count) add(lane, x[i + lane]);
            }
          }
        }
      });
    }
#pragma unroll
    for (int lane = 0; lane < 4; ++lane) tile.sums[slot][4 * q + lane] = sums[lane];
  }

  LDPK_DEVICE void fold(SquaresTile& tile) const {
    if (thread >= kPieces) return;
    double* lanes = tile.sums[thread];
#pragma unroll
    for (int half = 8; half > 0; half /= 2) {
#pragma unroll
      for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
    }
  }

  LDPK_DEVICE void finish(const SquaresTile& tile) const {
    if (thread >= rows_of_block(span) || row + thread >= plan.rows) return;
    double total = 0;
    for (int p = 0; p < pieces; ++p) total += tile.sums[thread * pieces + p][0];
    block.layer.parts[stretch * plan.rows + row + thread] = total;
  }
};

// The norms and scales of one row, from all spans of a launch. With one bound the sum goes on from launch to launch.
LDPK_DEVICE void norms_of_row(const ClippedPlan& plan, int64_t row) {
  double* norms = plan.norms + row * plan.layers;
  double* scales = plan.scales + row * plan.layers;
  double total = plan.first ? 0.0 : norms[0];
  for (int i = 0; i < plan.count; ++i) {
    const ClippedLayer& s = plan.laws[i];
    double squares = 0;
    for (int64_t stretch = 0; stretch < stretches_of(plan.spans[i]); ++stretch)
      squares += s.parts[stretch * plan.rows + row];
    total += squares;
    if (plan.layers > 1) {
      norms[s.layer] = sqrt(squares);
      scales[s.layer] = row_scale(norms[s.layer], s.bound);
    }
  }
  if (plan.layers == 1) {
    norms[0] = plan.last ? sqrt(total) : total;
    scales[0] = row_scale(norms[0], plan.laws[0].bound);
  } else if (plan.last) {
    bool finite = true;
    for (int64_t l = 0; l < plan.layers; ++l) finite &= norms[l] < static_cast<double>(INFINITY);
    for (int64_t l = 0; !finite && l < plan.layers; ++l) scales[l] = 0;
  }
}

__global__ void __launch_bounds__(kClippedThreads) clipped_squares_kernel(const __grid_constant__ ClippedPlan plan) {
  __shared__ SquaresTile tile;
  const SquaresThread thread(plan, blockIdx.x, threadIdx.x);
  thread.square(tile);
  __syncthreads();
  thread.fold(tile);
  __syncthreads();
  thread.finish(tile);
}

__global__ void __launch_bounds__(kClippedThreads) clipped_norms_kernel(const __grid_constant__ ClippedPlan plan) {
  const int64_t row = int64_t{blockIdx.x} * kClippedThreads + threadIdx.x;
  if (row < plan.rows) norms_of_row(plan, row);
}

}  // namespace ldpk
