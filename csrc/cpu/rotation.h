// SPDX-License-Identifier: Apache-2.0
// The Walsh-Hadamard transform with signs, in place. A level adds and subtracts numbers 2^level apart, and levels
// follow each other upwards: which numbers are added is fixed, so blocks, threads and registers change no bit.
// docs/mechanisms/rotation.md.
#pragma once

#include "dispatch.h"

namespace ldpk {

constexpr int kBlockLevels = 12;  // of the first pass: a block of 16 kB
constexpr int kColumnLevels = 9;  // of a later pass, at most
constexpr int kBuffer = 1 << 13;  // numbers that a task of a later pass holds: 32 kB

// Columns that a task of a later pass takes together: whole lines of the cache.
inline int64_t strip_of(int level, int levels) {
  const int64_t most = int64_t{kBuffer} >> levels, stride = int64_t{1} << level;
  return most < stride ? most : stride;
}

// Flips the signs of n numbers whose bits in `signs` are set; `first` is the number of the first. Both are multiples of
// 16, or there are fewer numbers than that in all.
LDPK_FN void flip(const uint32_t* signs, int64_t first, int64_t n, float* x) {
  for (int64_t i = 0; i + 16 <= n; i += 16) {
    const uint32_t word = signs[(first + i) / 32] >> ((first + i) % 32);
    uint32_t bits[16];
    memcpy(bits, x + i, sizeof(bits));
    for (int l = 0; l < 16; ++l) bits[l] ^= word << (31 - l) & 0x80000000u;
    memcpy(x + i, bits, sizeof(bits));
  }
  for (int64_t i = n & ~int64_t{15}; i < n; ++i) {
    if (signs[0] >> i & 1) x[i] = -x[i];
  }
}

// Levels over rows of one register each, which lie one after another: rows 1, 2, 4, ... apart.
template <class V>
LDPK_FN void row_levels(float* p, int64_t rows) {
  constexpr int64_t width = sizeof(V) / sizeof(float);
  const auto load = [&](int64_t row) {
    V v;
    memcpy(&v, p + row * width, sizeof(V));
    return v;
  };
  const auto store = [&](int64_t row, V v) { memcpy(p + row * width, &v, sizeof(V)); };
  int64_t h = 1;
  for (; h * 4 <= rows; h *= 4) {  // two levels at once, while the numbers are in registers
    for (int64_t base = 0; base < rows; base += 4 * h) {
      for (int64_t r = base; r < base + h; ++r) {
        const V a = load(r), b = load(r + h), c = load(r + 2 * h), d = load(r + 3 * h);
        const V plus = a + b, minus = a - b, other_plus = c + d, other_minus = c - d;
        store(r, plus + other_plus);
        store(r + h, minus + other_minus);
        store(r + 2 * h, plus - other_plus);
        store(r + 3 * h, minus - other_minus);
      }
    }
  }
  for (; h < rows; h *= 2) {
    for (int64_t base = 0; base < rows; base += 2 * h) {
      for (int64_t r = base; r < base + h; ++r) {
        const V a = load(r), b = load(r + h);
        store(r, a + b);
        store(r + h, a - b);
      }
    }
  }
}

// A level within a register. What is added to what is a constant: lanes filled one by one when it runs took most of the
// time of a rotation.
template <class Lanes, int h>
LDPK_FN typename Lanes::f32 level_within(typename Lanes::f32 v) {
  struct Constants {
    int32_t order[Lanes::count];
    uint32_t minus[Lanes::count];
    constexpr Constants() : order{}, minus{} {
      for (int l = 0; l < Lanes::count; ++l) order[l] = l ^ h, minus[l] = l & h ? 0x80000000u : 0u;
    }
  };
  static constexpr Constants constants;
  typename Lanes::u32 minus;
  memcpy(&minus, constants.minus, sizeof(minus));
#if defined(__clang__)
  typename Lanes::f32 other;
  for (int l = 0; l < Lanes::count; ++l) other[l] = v[l ^ h];
#else
  typename Lanes::i32 order;
  memcpy(&order, constants.order, sizeof(order));
  const typename Lanes::f32 other = __builtin_shuffle(v, order);
#endif
  // a + b, and a - b where the bit is set
  v = other + bit_cast<typename Lanes::f32>(bit_cast<typename Lanes::u32>(v) ^ minus);
  if constexpr (2 * h < Lanes::count) {
    return level_within<Lanes, 2 * h>(v);
  } else {
    return v;
  }
}

// The first levels of a block: those within a register, then the others.
template <class Lanes>
LDPK_FN void block_levels(float* p, int64_t n) {
  using V = typename Lanes::f32;
  constexpr int width = Lanes::count;
  if constexpr (width > 1) {
    if (n >= width) {
      for (int64_t i = 0; i < n; i += width) {
        V v;
        memcpy(&v, p + i, sizeof(V));
        v = level_within<Lanes, 1>(v);
        memcpy(p + i, &v, sizeof(V));
      }
      return row_levels<V>(p, n / width);
    }
  }
  row_levels<float>(p, n);
}

LDPK_FN void scaled(float factor, int64_t n, float* x) {
  for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}

// Task `task` of a pass: a block of the first pass (level 0), or strips of columns of a later one.
template <class Lanes>
void rotate_task(const Rotation& r, int level, int levels, int64_t task) {
  const bool last = level + levels == r.levels;
  if (level == 0) {
    const int64_t n = int64_t{1} << levels, first = task * n;
    float* p = r.data + first;
    if (r.before) flip(r.signs, first, n, p);
    block_levels<Lanes>(p, n);
    if (last) scaled(r.factor, n, p);
    if (last && !r.before) flip(r.signs, first, n, p);
    return;
  }
  using V = typename Lanes::f32;
  constexpr int width = Lanes::count;
  static_assert(kBuffer >> kColumnLevels == 16 && 16 % width == 0);
  const int64_t stride = int64_t{1} << level, rows = int64_t{1} << levels;
  const int64_t strip = strip_of(level, levels), strips = stride / strip;
  const int64_t base = task / strips * (stride * rows) + task % strips * strip;
  alignas(64) float buffer[kBuffer];
  // the strip's columns in groups of a register, each group's rows one after another
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t g = 0; g < strip / width; ++g)
      memcpy(buffer + (g * rows + row) * width, r.data + base + row * stride + g * width, width * sizeof(float));
  }
  for (int64_t g = 0; g < strip / width; ++g) row_levels<V>(buffer + g * rows * width, rows);
  if (last) scaled(r.factor, strip * rows, buffer);
  for (int64_t row = 0; row < rows; ++row) {
    float* to = r.data + base + row * stride;
    for (int64_t g = 0; g < strip / width; ++g)
      memcpy(to + g * width, buffer + (g * rows + row) * width, width * sizeof(float));
    if (last && !r.before) flip(r.signs, base + row * stride, strip, to);
  }
}

}  // namespace ldpk
