// SPDX-License-Identifier: Apache-2.0
// Clipped sums of single numbers in CUDA, in one pass: a thread block has a group of 4096 numbers, a thread 16 vectors
// of 16 bytes of one piece, whose lanes are then added by halves.
#pragma once

#include "clipped_norms.cuh"

namespace ldpk {

constexpr int kNumberThreads = 128;  // enough for four pieces of fp64; of the others, the first of them have work
constexpr int kGroupPieces = kRowGroup / kPiece;

template <class Sum>
struct NumbersTile {
  Sum lanes[kGroupPieces][kNumberLanes];
};

// A thread, in steps with barriers between them: add, fold by 32, 16, 8, 4, 2, 1, finish.
template <bool grid, Dtype dtype>
struct NumbersThread {
  using Bits = BitsOf<dtype>;
  using Float = FloatOf<dtype>;
  using Sum = ClippedSum<grid, dtype>;
  using Tile = NumbersTile<Sum>;
  static constexpr int width = 16 / sizeof(Bits),
                       across = kNumberLanes / width;  // lanes of a thread, threads of a piece
  static constexpr int vectors = kPiece / kNumberLanes, vectors_at_once = 8;
  using Vector = Few<Bits, width>;
  static_assert(across * kGroupPieces <= kNumberThreads && vectors % vectors_at_once == 0);

  const ClippedPlan& plan;
  const ClippedBlock& block;
  const int thread;

  LDPK_DEVICE void add(Tile& tile) const {
    const int piece = thread / across, first = thread % across * width;
    if (piece >= kGroupPieces) return;
    const int64_t row = block.number * kRowGroup + piece * kPiece;
    const int64_t left = plan.rows - row;
    const Bits* x = reinterpret_cast<const Bits*>(block.span.data) + row + first;
    double* norms = plan.norms + row + first;
    const Float bound = at_most(Float{}, block.layer.bound);
    Sum sums[width] = {};
    if (left >= kPiece && block.span.data % sizeof(Vector) == 0) {
#pragma unroll 1
      for (int i = 0; i < vectors; i += vectors_at_once) {
        Vector values[vectors_at_once];
#pragma unroll
        for (int k = 0; k < vectors_at_once; ++k)
          values[k] = *reinterpret_cast<const Vector*>(x + (i + k) * kNumberLanes);
#pragma unroll
        for (int k = 0; k < vectors_at_once; ++k) {
#pragma unroll
          for (int v = 0; v < width; ++v)
            add_number(sums[v], values[k].values[v], bound, norms[(i + k) * kNumberLanes + v]);
        }
      }
    } else {
      for (int i = 0; i < kPiece; i += kNumberLanes) {
#pragma unroll
        for (int v = 0; v < width; ++v) {
          if (i + first + v < left) add_number(sums[v], x[i + v], bound, norms[i + v]);
        }
      }
    }
#pragma unroll
    for (int v = 0; v < width; ++v) tile.lanes[piece][first + v] = sums[v];
  }

  LDPK_DEVICE void fold(Tile& tile, int half) const {
    for (int i = thread; i < kGroupPieces * half; i += kNumberThreads)
      tile.lanes[i / half][i % half] += tile.lanes[i / half][i % half + half];
  }

  LDPK_DEVICE void finish(const Tile& tile) const {
    if (thread > 0) return;
    double total = 0;
    for (int piece = 0; piece < kGroupPieces; ++piece) total += tile.lanes[piece][0];  // +0 where there are no rows
    block.layer.totals[block.number] = total;
  }

 private:
  LDPK_DEVICE void add_number(Sum& sum, Bits bits, Float bound, double& norm) const {
    const Float x = Element<dtype>::number(bits), kept = clamped(x, bound);
    norm = fabs(static_cast<double>(x));
    sum += grid ? static_cast<Sum>(trunc(static_cast<double>(kept) * plan.inverse_unit)) : static_cast<Sum>(kept);
  }
};

template <bool grid, Dtype... served>
__global__ void __launch_bounds__(kNumberThreads) clipped_numbers_kernel(const __grid_constant__ ClippedPlan plan) {
  __shared__ NumbersTile<double> memory;
  const ClippedBlock block(plan, blockIdx.x);
  with_dtype_of<served...>(block.span, [&](auto dtype) {
    using Thread = NumbersThread<grid, decltype(dtype)::value>;
    auto& tile = reinterpret_cast<typename Thread::Tile&>(memory);
    const Thread thread{plan, block, static_cast<int>(threadIdx.x)};
    thread.add(tile);
    for (int half = kNumberLanes / 2; half > 0; half /= 2) {
      __syncthreads();
      thread.fold(tile, half);
    }
    __syncthreads();
    thread.finish(tile);
  });
}

}  // namespace ldpk
