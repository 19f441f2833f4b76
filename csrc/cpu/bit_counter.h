// SPDX-License-Identifier: Apache-2.0
// Adding one-bit reports to bit-sliced counters: plane p holds bit p of every weight's count, packed as the reports
// are.
#pragma once

#include "../lanes.h"

namespace ldpk {

// Planes are padded to this many bytes, so that a register never reaches past their end.
constexpr int64_t kPlanePadding = 64;

template <class Lanes>
struct BitCounter {
  using Word = typename Lanes::u64;

  static LDPK_FN Word load(const void* p) {
    Word w;
    memcpy(&w, p, sizeof(w));
    return w;
  }

  // a becomes the sum bit, `carry` the carry.
  static LDPK_FN void full_add(Word& a, Word b, Word& carry) {
    const Word half = a ^ b, both = a & b;
    a = half ^ carry;
    carry = both | (half & carry);
  }

  // The number of ones among 2^bits - 1 reports: twice that of half of them, plus the report between as the carry.
  template <int bits>
  static LDPK_FN void count(const uint8_t* const* reports, int64_t at, Word* sum) {
    if constexpr (bits == 1) {
      sum[0] = load(reports[0] + at);
    } else {
      constexpr int half = (1 << (bits - 1)) - 1;
      Word other[bits - 1], carry = load(reports[2 * half] + at);
      count<bits - 1>(reports, at, sum);
      count<bits - 1>(reports + half, at, other);
      for (int i = 0; i < bits - 1; ++i) full_add(sum[i], other[i], carry);
      sum[bits - 1] = carry;
    }
  }

  template <int bits>
  static void add(const uint8_t* const* reports, uint8_t* const* planes, int plane_count, int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at += sizeof(Word)) {
      Word sum[bits];
      count<bits>(reports, at, sum);
      Word carry = sum[0] ^ sum[0];
      for (int p = 0; p < plane_count; ++p) {
        Word plane = load(planes[p] + at);
        full_add(plane, p < bits ? sum[p < bits ? p : 0] : sum[0] ^ sum[0], carry);
        memcpy(planes[p] + at, &plane, sizeof(Word));
      }
    }
  }
};

// The digits of n elements from byte `byte` on, in base 256: bit p of each is in planes[p], for up to 8 planes. Lanes
// may have digits64, which does it for 64.
template <class Lanes>
LDPK_FN void digits_of(const uint8_t* const* planes, int members, int64_t byte, int64_t n, uint8_t* digits) {
  int64_t i = 0;
  if constexpr (requires { Lanes::digits64(planes, members, byte, digits); }) {
    for (; i + 64 <= n; i += 64) Lanes::digits64(planes, members, byte + i / 8, digits + i);
  }
  for (; i < n; i += 8) {
    uint64_t rows = 0;
    for (int p = 0; p < members; ++p) rows |= uint64_t{planes[p][byte + i / 8]} << (8 * p);
    rows = transpose_bits(rows);
    memcpy(digits + i, &rows, 8);
  }
}

// offset + step * count for the n elements from byte `byte` on.
template <class Lanes, class Float>
void decode_counts(const uint8_t* const* planes, int plane_count, int64_t byte, int64_t n, double offset, double step,
                   Float* out) {
  constexpr int tile = 512;
  for (int64_t begin = 0; begin < n; begin += tile) {
    const int64_t left = n - begin < tile ? n - begin : tile;
    uint8_t digits[tile];
    if (plane_count <= 8) {
      digits_of<Lanes>(planes, plane_count, byte + begin / 8, left, digits);
      for (int i = 0; i < left; ++i) out[begin + i] = static_cast<Float>(offset + step * digits[i]);
      continue;
    }
    double counts[tile] = {};
    for (int group = 0; group < plane_count; group += 8) {
      const int members = plane_count - group < 8 ? plane_count - group : 8;
      digits_of<Lanes>(planes + group, members, byte + begin / 8, left, digits);
      const double weight = static_cast<double>(uint64_t{1} << group);
      for (int i = 0; i < left; ++i) counts[i] += weight * digits[i];
    }
    for (int i = 0; i < left; ++i) out[begin + i] = static_cast<Float>(offset + step * counts[i]);
  }
}

// Adds 2^bits - 1 reports, bits from 1 to 4, over bytes [begin, end) of the planes and of the reports, a multiple of
// kPlanePadding apart.
template <class Lanes>
void count_bits(int bits, const uint8_t* const* reports, uint8_t* const* planes, int plane_count, int64_t begin,
                int64_t end) {
  using Counter = BitCounter<Lanes>;
  constexpr decltype(&Counter::template add<1>) adders[] = {Counter::template add<1>, Counter::template add<2>,
                                                            Counter::template add<3>, Counter::template add<4>};
  adders[bits - 1](reports, planes, plane_count, begin, end);
}

}  // namespace ldpk
