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
  static LDPK_FN float sum(V v) {
    float numbers[n];
    store(numbers, v);
    for (int half = n / 2; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) numbers[i] += numbers[i + half];
    }
    return numbers[0];
  }
};

}  // namespace ldpk
