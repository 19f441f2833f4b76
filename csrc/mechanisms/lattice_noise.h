// SPDX-License-Identifier: Apache-2.0
// Noise of whole vectors: a symmetric integer from a table and one 64-bit draw, in nearly all cases. The law is that of
// the table to 88 bits, and with a shift a discrete Gaussian of deviation 64 * 2^shift.
// docs/mechanisms/vector_gaussian.md has the proof; ldpkernels/reference/lattice.py is the twin.
#pragma once

#include "clipped_noise.h"

namespace ldpk {

struct NoiseTable {
  const uint32_t* high;   // the first 24 bits of the cumulative probabilities of 0, 1, ...; the last is 2^24
  const uint64_t* low;    // the other 64
  const uint32_t* guide;  // by the first 10 bits of a draw: the first entry that can be its number
  int32_t shift;          // 0, or 1 to 16: the bits that follow the table's number
};

// What a draw says: the table's number by its 24 bits alone (high[k] >= t), the sign, the bits that follow, and 23 bits
// for the decision to keep.
struct LatticeDraw {
  uint32_t t, k, following, decision;
  bool negative;

  LDPK_FN LatticeDraw(const NoiseTable& table, uint64_t w)
      : t(static_cast<uint32_t>(w >> 40)),
        k(table.guide[w >> 54]),
        following((static_cast<uint32_t>(w >> 23) & 0xffffu) >> (16 - table.shift)),
        decision(static_cast<uint32_t>(w) & 0x7fffffu),
        negative(w >> 39 & 1) {
    while (table.high[k] < t) ++k;
  }
  LDPK_FN int32_t magnitude(const NoiseTable& table) const {
    return static_cast<int32_t>(k << table.shift | following);
  }
  // With K = 2^shift, u following and the magnitude y = k K + u: it is dropped with probability 1 - exp(-x), where
  // x = (y^2 - (k K)^2) / (2 (64 K)^2) = numerator / 2^(13 + 2 shift), below 1/4.
  LDPK_FN uint64_t numerator(const NoiseTable& table) const {
    return following * (following + (uint64_t{k} << (table.shift + 1)));
  }
};

// False where the draw alone may not decide: without a branch or a loop, so that compilers make lanes of it. `high` and
// `low` are the halves of the draw.
LDPK_FN bool quick_noise(const NoiseTable& table, uint32_t high, uint32_t low, int32_t& noise) {
  const int32_t shift = table.shift;
  const auto* bounds = reinterpret_cast<const int32_t*>(table.high);  // indices have a sign where lanes gather
  const auto* guide = reinterpret_cast<const int32_t*>(table.guide);
  const int32_t t = static_cast<int32_t>(high >> 8);
  int32_t k = guide[static_cast<int32_t>(high >> 22)];
  k += bounds[k] < t;
  k += bounds[k] < t;  // where a third step is needed, the bound is still below
  const uint32_t middle = high << 9 | low >> 23, following = (middle & 0xffffu) >> (16 - shift);
  const uint32_t number = static_cast<uint32_t>(k), y = number << shift | following;
  const uint32_t minus = 0u - (middle >> 16 & 1);
  noise = static_cast<int32_t>((y ^ minus) - minus);
  // numerator * 2^10 / 2^(2 shift), as the upper half of a product of 32-bit numbers
  const int32_t first = shift <= 10 ? (32 - shift) & 31 : 42 - 2 * shift, second = shift <= 10 ? 10 - shift : 0;
  const uint64_t product = uint64_t{following << first} * ((following + (number << (shift + 1))) << second);
  const uint32_t dropped = (low & 0x7fffffu) <= static_cast<uint32_t>(product >> 32);
  const uint32_t open = dropped | ((y == 0) & minus);
  return (static_cast<uint32_t>(bounds[k] <= t) | (shift > 0 ? open : 0u)) == 0;
}

template <class Words>
LDPK_FN uint64_t next64(Words& words) {
  const uint64_t low = words.next();
  return low | uint64_t{words.next()} << 32;
}

// The same draw in full; what it leaves open is decided by `words`, in this order.
template <class Words>
LDPK_FN int32_t lattice_noise(const NoiseTable& table, uint64_t w, Words& words) {
  for (;; w = next64(words)) {
    LatticeDraw draw(table, w);
    if (table.high[draw.k] == draw.t) {
      const uint64_t rest = next64(words);
      while (table.high[draw.k] == draw.t && table.low[draw.k] <= rest) ++draw.k;
    }
    const int32_t y = draw.magnitude(table);
    if (table.shift == 0) return draw.negative ? -y : y;
    // Canonne, Kamath and Steinke (2020), algorithm 1: events of probability x/1, x/2, ...; an even number is kept. The
    // first x is decided by 23 bits of the draw, and by 32 more where they are equal.
    const uint64_t numerator = draw.numerator(table), scaled = numerator << 10, whole = scaled >> (2 * table.shift);
    bool event = draw.decision < whole;
    if (draw.decision == whole) {
      const uint64_t fraction = scaled - (whole << (2 * table.shift));
      event = words.next() >> (32 - 2 * table.shift) < fraction;
    }
    if (event) {
      const int unused = 64 - (13 + 2 * table.shift);
      uint32_t count = 2;
      while (next64(words) >> unused < numerator && words.below(count) == 0) ++count;
      if (count % 2 == 0) continue;
    }
    if (y == 0 && draw.negative) continue;
    return draw.negative ? -y : y;
  }
}

}  // namespace ldpk
