// SPDX-License-Identifier: Apache-2.0
// The Walsh-Hadamard transform with signs, in place. A level adds and subtracts numbers 2^level apart, and levels
// follow each other upwards: which numbers are added is fixed, so blocks, threads and registers change no bit.
// docs/mechanisms/rotation.md.
#pragma once

#include "dispatch.h"

namespace ldpk {

// Levels of a step: its rows are in registers. AVX2 and scalar code have 16 registers, the others 32.
template <class Lanes>
constexpr int kStepLevels = Lanes::count == 8 || Lanes::count == 1 ? 3 : 4;
constexpr int64_t kAhead = 4;  // rows that are asked for before they are copied

// Flips the signs of the lanes whose bits are set; `number` is the first lane's, a multiple of their count.
template <class Lanes>
LDPK_FN typename Lanes::f32 flipped(typename Lanes::f32 v, const uint32_t* signs, int64_t number) {
  using u32 = typename Lanes::u32;
  struct Constants {
    uint32_t shift[Lanes::count];
    constexpr Constants() : shift{} {
      for (int l = 0; l < Lanes::count; ++l) shift[l] = 31 - l;
    }
  };
  static constexpr Constants constants;
  u32 shift;
  memcpy(&shift, constants.shift, sizeof(shift));
  const u32 bits = Lanes::broadcast_u32(signs[number / 32] >> (number % 32)) << shift;
  return bit_cast<typename Lanes::f32>(bit_cast<u32>(v) ^ (bits & Lanes::broadcast_u32(0x80000000u)));
}

// The levels within a register. What is added to what is a constant: lanes filled one by one when it runs took most of
// the time of a rotation.
template <class Lanes, int h = 1>
LDPK_FN typename Lanes::f32 levels_within(typename Lanes::f32 v) {
  if constexpr (h < Lanes::count) {
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
    return levels_within<Lanes, 2 * h>(other + bit_cast<typename Lanes::f32>(bit_cast<typename Lanes::u32>(v) ^ minus));
  } else {
    return v;
  }
}

// The levels across registers.
template <class V, int rows, int h = 1>
LDPK_FN void levels_across(V (&v)[rows]) {
  if constexpr (h < rows) {
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) {
      if (i & h) continue;
      const V a = v[i], b = v[i + h];
      v[i] = a + b;
      v[i + h] = a - b;
    }
    levels_across<V, rows, 2 * h>(v);
  }
}

// What is done to numbers on their way: signs before all levels; after the last, the factor and signs.
struct Ends {
  const uint32_t *before = nullptr, *after = nullptr;
  float factor = 1;
  bool last = false;
};

// `count` levels of as many rows as that takes, from and to rows that are `stride` apart. With `within`, the levels
// within a register come first. Of the columns, `first` is the first one's number, and `apart` numbers are between
// rows.
template <class Lanes, int count, bool within>
LDPK_FN void rows_of(const float* from, int64_t from_stride, float* to, int64_t to_stride, int64_t columns,
                     const Ends& ends, int64_t first, int64_t apart) {
  using V = typename Lanes::f32;
  constexpr int n = 1 << count;
  for (int64_t column = 0; column < columns; column += Lanes::count) {
    V v[n];
#pragma GCC unroll 16
    for (int i = 0; i < n; ++i) {
      memcpy(&v[i], from + i * from_stride + column, sizeof(V));
      if constexpr (within) {
        __builtin_prefetch(from + i * from_stride + column + (1 << kBlockLevels));  // of the next block
        if (ends.before) v[i] = flipped<Lanes>(v[i], ends.before, first + i * apart + column);
        v[i] = levels_within<Lanes>(v[i]);
      }
    }
    levels_across(v);
    if (ends.last) {
      const V factor = Lanes::broadcast(V{}, ends.factor);
#pragma GCC unroll 16
      for (int i = 0; i < n; ++i) {
        v[i] = v[i] * factor;
        if (ends.after) v[i] = flipped<Lanes>(v[i], ends.after, first + i * apart + column);
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < n; ++i) memcpy(to + i * to_stride + column, &v[i], sizeof(V));
  }
}

template <class Lanes>
LDPK_FN void rows(int count, const float* from, int64_t from_stride, float* to, int64_t to_stride, int64_t columns,
                  const Ends& ends, int64_t first, int64_t apart) {
  if (count == 1) return rows_of<Lanes, 1, false>(from, from_stride, to, to_stride, columns, ends, first, apart);
  if (count == 2) return rows_of<Lanes, 2, false>(from, from_stride, to, to_stride, columns, ends, first, apart);
  if (count == 3) return rows_of<Lanes, 3, false>(from, from_stride, to, to_stride, columns, ends, first, apart);
  if constexpr (kStepLevels<Lanes> == 4)
    rows_of<Lanes, 4, false>(from, from_stride, to, to_stride, columns, ends, first, apart);
}

// How many of `left` levels a step takes: steps of about the same size.
template <class Lanes>
LDPK_FN int step_levels(int left) {
  const int steps = (left + kStepLevels<Lanes> - 1) / kStepLevels<Lanes>;
  return (left + steps - 1) / steps;
}

// All levels of as many numbers as the first-level cache holds. Between the first step and the last they are in a
// buffer where lines of the cache do not divide them evenly.
template <class Lanes>
void small_block(float* p, int levels, const Ends& ends, int64_t first) {
  constexpr int width = Lanes::count, within = width == 1 ? 0 : width == 4 ? 2 : width == 8 ? 3 : 4;
  constexpr int most = kStepLevels<Lanes>;
  alignas(64) float buffer[1 << kBlockLevels];
  const int64_t n = int64_t{1} << levels;
  const bool full = levels >= within + most;
  int level = full ? within + most : within;
  float* held = level == levels || reinterpret_cast<uintptr_t>(p) % 64 == 0 ? p : buffer;
  Ends here = ends;
  here.last = ends.last && level == levels;
  for (int64_t i = 0; i < n; i += int64_t{1} << level) {
    if (full) {
      rows_of<Lanes, most, true>(p + i, width, held + i, width, width, here, first + i, width);
    } else {
      rows_of<Lanes, 0, true>(p + i, width, held + i, width, width, here, first + i, width);
    }
  }
  while (level < levels) {
    const int count = step_levels<Lanes>(levels - level);
    const int64_t stride = int64_t{1} << level;
    const bool last = level + count == levels;
    here.last = ends.last && last;
    for (int64_t i = 0; i < n; i += stride << count)
      rows<Lanes>(count, held + i, stride, (last ? p : held) + i, stride, stride, here, first + i, stride);
    level += count;
  }
}

// Levels [level, level + levels) of kStrip columns that begin at p. They go through a buffer, as rows a power of two
// apart would push one another out of the cache: a piece of a row is read once and written once.
template <class Lanes>
void columns(float* p, int level, int levels, const Ends& ends, int64_t first, float* buffer) {
  const int64_t stride = int64_t{1} << level, all = int64_t{1} << levels;
  for (int at = 0; at < levels;) {
    const int count = step_levels<Lanes>(levels - at);
    const int64_t n = int64_t{1} << count, apart = int64_t{1} << at;
    const bool last = at + count == levels;
    Ends here = ends;
    here.last = ends.last && last;
    for (int64_t i = 0; i < all / n; ++i) {  // n rows that are `apart`
      const int64_t row = i / apart * apart * n + i % apart;
      float* held = buffer + row * kHeld;
      if (at == 0) {
        for (int64_t r = row; r < row + n; ++r) {
          const float* ahead = p + (r + kAhead < all ? r + kAhead : r) * stride;
          for (int64_t c = 0; c < kStrip; c += 16) __builtin_prefetch(ahead + c);
          memcpy(buffer + r * kHeld, p + r * stride, kStrip * sizeof(float));
        }
      }
      rows<Lanes>(count, held, apart * kHeld, held, apart * kHeld, kStrip, here, first + row * stride, apart * stride);
      if (last) {
        for (int64_t r = 0; r < n; ++r)
          memcpy(p + (row + r * apart) * stride, held + r * apart * kHeld, kStrip * sizeof(float));
      }
    }
    at += count;
  }
}

// Fewer numbers than a register has.
LDPK_FN void few(float* p, int levels, const Ends& ends) {
  const int n = 1 << levels;
  const auto flip = [&](const uint32_t* signs) {
    for (int i = 0; signs && i < n; ++i) p[i] = signs[0] >> i & 1 ? -p[i] : p[i];
  };
  flip(ends.before);
  for (int h = 1; h < n; h *= 2) {
    for (int i = 0; i < n; ++i) {
      if (i & h) continue;
      const float a = p[i], b = p[i + h];
      p[i] = a + b;
      p[i + h] = a - b;
    }
  }
  for (int i = 0; i < n; ++i) p[i] *= ends.factor;
  flip(ends.after);
}

// Task `task` of a pass: a block of the first pass (level 0), or columns of a later one. `buffer` is the thread's own,
// of kRotationBuffer numbers.
template <class Lanes>
void rotate_task(const Rotation& r, int level, int levels, int64_t task, float* buffer) {
  Ends ends{r.before ? r.signs : nullptr, r.before ? nullptr : r.signs, r.factor, level + levels == r.levels};
  const int64_t n = int64_t{1} << levels;
  if (level > 0) {
    const int64_t stride = int64_t{1} << level, strips = stride / kStrip;
    const int64_t first = task / strips * (stride * n) + task % strips * kStrip;
    return columns<Lanes>(r.data + first, level, levels, ends, first, buffer);
  }
  const int64_t first = task * n;
  float* p = r.data + first;
  if (n < Lanes::count) return few(p, levels, ends);
  if (levels <= kBlockLevels) return small_block<Lanes>(p, levels, ends, first);
  const int64_t block = int64_t{1} << kBlockLevels;
  const Ends before{ends.before, nullptr, 1, false};
  for (int64_t i = 0; i < n; i += block) small_block<Lanes>(p + i, kBlockLevels, before, first + i);
  for (int64_t i = 0; i < block; i += kStrip)
    columns<Lanes>(p + i, kBlockLevels, levels - kBlockLevels, ends, first + i, buffer);
}

}  // namespace ldpk
