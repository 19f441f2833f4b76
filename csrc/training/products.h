// SPDX-License-Identifier: Apache-2.0
// The two loops of a linear layer: `combine` adds multiples of rows to rows, `dots` takes inner products.
#pragma once

#include "machine.h"

namespace ldpk {

// out[o][p] = sum over rows r of factors[r][o] in[r][p], or that much more; `length` numbers, whole registers.
struct Rows {
  const float* in;
  int64_t in_stride, rows;
  const float* factors;
  int64_t factors_stride;
  bool onto;
  float* out;
  int64_t out_stride, outputs, length;
};

template <class M, int outputs, int registers>
LDPK_FN void combine_block(const Rows& a, int64_t o, int64_t p) {
  using V = typename M::V;
  V sums[outputs][registers];
#pragma GCC unroll 8
  for (int i = 0; i < outputs; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < registers; ++v)
      sums[i][v] = a.onto ? M::load(a.out + (o + i) * a.out_stride + p + v * M::width) : V{};
  }
  const float* factors = a.factors + o;
  for (int64_t r = 0; r < a.rows; ++r, factors += a.factors_stride) {
    const float* row = a.in + r * a.in_stride + p;
    V x[registers];
#pragma GCC unroll 8
    for (int v = 0; v < registers; ++v) x[v] = M::load(row + v * M::width);
#pragma GCC unroll 8
    for (int i = 0; i < outputs; ++i) {
      const V factor = M::all(factors[i]);
#pragma GCC unroll 8
      for (int v = 0; v < registers; ++v) sums[i][v] += x[v] * factor;
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < outputs; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < registers; ++v) M::store(a.out + (o + i) * a.out_stride + p + v * M::width, sums[i][v]);
  }
}

template <class M, int registers>
LDPK_CALL void combine_columns(const Rows& a, int64_t p) {
  int64_t o = 0;
  for (; o + M::kOutputs <= a.outputs; o += M::kOutputs) combine_block<M, M::kOutputs, registers>(a, o, p);
  for (; o + 2 <= a.outputs; o += 2) combine_block<M, 2, registers>(a, o, p);
  for (; o < a.outputs; ++o) combine_block<M, 1, registers>(a, o, p);
}

template <class M>
LDPK_CALL void combine(const Rows& a) {
  int64_t p = 0, left = a.length / M::width;
  for (; left >= M::kRegisters; left -= M::kRegisters, p += M::kRegisters * M::width)
    combine_columns<M, M::kRegisters>(a, p);
  for (; left >= 2; left -= 2, p += 2 * M::width) combine_columns<M, 2>(a, p);
  for (; left >= 1; --left, p += M::width) combine_columns<M, 1>(a, p);
}

// Inner products of a's rows with b's: `length` numbers, whole registers.
struct Pairs {
  const float *a, *b;
  int64_t a_row, b_row, length;
};

template <class M, int rows, int columns>
LDPK_FN void dots_block(const Pairs& of, const float* a, const float* b, float* out, int64_t out_stride) {
  using V = typename M::V;
  V sums[rows][columns] = {};
  for (int64_t p = 0; p < of.length; p += M::width) {
    V x[rows];
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i) x[i] = M::load(a + i * of.a_row + p);
#pragma GCC unroll 8
    for (int j = 0; j < columns; ++j) {
      const V y = M::load(b + j * of.b_row + p);
#pragma GCC unroll 8
      for (int i = 0; i < rows; ++i) sums[i][j] += x[i] * y;
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < columns; ++j) out[i * out_stride + j] = M::sum(sums[i][j]);
  }
}

template <class M, int rows>
LDPK_FN void dots_row(const Pairs& of, int64_t row, int64_t columns, float* out, int64_t out_stride) {
  const float* a = of.a + row * of.a_row;
  float* to = out + row * out_stride;
  int64_t j = 0;
  for (; j + 5 <= columns; j += 5) dots_block<M, rows, 5>(of, a, of.b + j * of.b_row, to + j, out_stride);
  for (; j + 3 <= columns; j += 3) dots_block<M, rows, 3>(of, a, of.b + j * of.b_row, to + j, out_stride);
  for (; j < columns; ++j) dots_block<M, rows, 1>(of, a, of.b + j * of.b_row, to + j, out_stride);
}

// out[i][j] = the product of a's row i and b's row j.
template <class M>
LDPK_CALL void dots(const Pairs& of, int64_t rows, int64_t columns, float* out, int64_t out_stride) {
  int64_t row = 0;
  for (; row + M::kRows <= rows; row += M::kRows) dots_row<M, M::kRows>(of, row, columns, out, out_stride);
  for (; row < rows; ++row) dots_row<M, 1>(of, row, columns, out, out_stride);
}

}  // namespace ldpk
