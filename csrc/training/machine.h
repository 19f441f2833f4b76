// SPDX-License-Identifier: Apache-2.0
// The register type of an instruction set, and how many of them its loops keep.
#pragma once

#include "chain.h"

namespace ldpk {

// A register of `n` numbers. Blocks of a convolution: columns of an image, registers of channels, and sums in all. Of
// the linear layers' loops: outputs times registers of `combine`, rows of `dots`.
template <int n, int columns, int vectors, int sums, int outputs, int registers, int rows>
struct Machine {
  static constexpr int width = n, kColumns = columns, kVectors = vectors, kSums = sums;
  static constexpr int kOutputs = outputs, kRegisters = registers, kRows = rows;
  typedef float V __attribute__((vector_size(n * sizeof(float))));
  typedef int32_t I __attribute__((vector_size(n * sizeof(float))));
  typedef float Anywhere __attribute__((vector_size(n * sizeof(float)), aligned(4), may_alias));
  typedef int32_t IAnywhere __attribute__((vector_size(n * sizeof(float)), aligned(4), may_alias));
  static LDPK_FN V load(const float* p) { return *reinterpret_cast<const Anywhere*>(p); }
  static LDPK_FN void store(float* p, V v) { *reinterpret_cast<Anywhere*>(p) = v; }
  static LDPK_FN I load(const int32_t* p) { return *reinterpret_cast<const IAnywhere*>(p); }
  static LDPK_FN void store(int32_t* p, I v) { *reinterpret_cast<IAnywhere*>(p) = v; }
  static LDPK_FN V all(float x) { return x - V{}; }
  static LDPK_FN V rectified(V v) { return v < V{} ? V{} : v; }
  static LDPK_FN float sum(V v) {
    float numbers[n];
    store(numbers, v);
    for (int half = n / 2; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) numbers[i] += numbers[i + half];
    }
    return numbers[0];
  }
};

// to[c][r] = from[r][c].
template <class M>
LDPK_CALL void transpose(const float* from, int64_t from_row, int64_t rows, int64_t columns, float* to,
                         int64_t to_row) {
  typedef float Four __attribute__((vector_size(16)));
  typedef Four Anywhere __attribute__((aligned(4), may_alias));
  const auto load = [](const float* p) __attribute__((always_inline)) { return *reinterpret_cast<const Anywhere*>(p); };
  const auto store = [](float* p, Four v) __attribute__((always_inline)) { *reinterpret_cast<Anywhere*>(p) = v; };
  int64_t c = 0;
  for (; c + 4 <= columns; c += 4) {
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4) {
      const float* in = from + r * from_row + c;
      float* out = to + c * to_row + r;
      const Four a = load(in), b = load(in + from_row), d = load(in + 2 * from_row), e = load(in + 3 * from_row);
      const Four x{a[0], b[0], a[1], b[1]}, y{d[0], e[0], d[1], e[1]};
      const Four u{a[2], b[2], a[3], b[3]}, v{d[2], e[2], d[3], e[3]};
      store(out, Four{x[0], x[1], y[0], y[1]});
      store(out + to_row, Four{x[2], x[3], y[2], y[3]});
      store(out + 2 * to_row, Four{u[0], u[1], v[0], v[1]});
      store(out + 3 * to_row, Four{u[2], u[3], v[2], v[3]});
    }
    for (; r < rows; ++r) {
      for (int64_t i = c; i < c + 4; ++i) to[i * to_row + r] = from[r * from_row + i];
    }
  }
  for (; c < columns; ++c) {
    for (int64_t r = 0; r < rows; ++r) to[c * to_row + r] = from[r * from_row + c];
  }
}

}  // namespace ldpk
