// SPDX-License-Identifier: Apache-2.0
// Adding one-bit reports to bit-sliced counters: plane p holds bit p of every weight's count, packed as the reports are.
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

// Adds 2^bits - 1 reports, bits from 1 to 4, over bytes [begin, end) of the planes and of the reports, a multiple of
// kPlanePadding apart.
template <class Lanes>
void count_bits(int bits, const uint8_t* const* reports, uint8_t* const* planes, int plane_count, int64_t begin,
                int64_t end) {
  using Counter = BitCounter<Lanes>;
  switch (bits) {
    case 1: return Counter::template add<1>(reports, planes, plane_count, begin, end);
    case 2: return Counter::template add<2>(reports, planes, plane_count, begin, end);
    case 3: return Counter::template add<3>(reports, planes, plane_count, begin, end);
    default: return Counter::template add<4>(reports, planes, plane_count, begin, end);
  }
}

}  // namespace ldpk
