// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
//
// A word travels in the low half of a 64-bit lane. The high half is garbage that no step reads: the multiplication
// takes the low halves only, and its 64-bit product is at once the new low word (as it stands) and the new high word
// (shifted). The same text is scalar code on a GPU and four or eight blocks at a time on a CPU.
#pragma once

#include "lanes.h"

namespace ldpk {

struct Philox {
  static constexpr int key_words = 2;
  static constexpr int block_words = 4;
  static constexpr int round_count = 10;

  static LDPK_FN void add_to_key(uint32_t& k0, uint32_t& k1) {
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }

  template <class Lanes, class Word>
  static LDPK_FN void round(typename Lanes::u64 (&c)[4], Word k0, Word k1) {
    const auto p0 = Lanes::multiply_low_words(c[0], 0xD2511F53u);
    const auto p1 = Lanes::multiply_low_words(c[2], 0xCD9E8D57u);
    c[0] = (p1 >> 32) ^ c[1] ^ k0;
    c[1] = p1;
    c[2] = (p0 >> 32) ^ c[3] ^ k1;
    c[3] = p0;
  }

  // The counter goes in, the block comes out.
  template <class Lanes>
  static LDPK_FN void rounds(typename Lanes::u64 (&c)[4], uint32_t k0, uint32_t k1) {
#if defined(__CUDACC__)
#pragma unroll
#else
#pragma GCC unroll 10
#endif
    for (int i = 0; i < round_count; ++i) {
      round<Lanes>(c, uint64_t{k0}, uint64_t{k1});
      add_to_key(k0, k1);
    }
  }

  // Block `index` of keystream `stream`: the counter is (index, stream, domain).
  static LDPK_FN void block(const Key& key, uint32_t stream, uint32_t domain, uint64_t index, uint32_t (&out)[4]) {
    uint64_t c[4] = {index, index >> 32, stream, domain};
    rounds<ScalarLanes>(c, key.words[0], key.words[1]);
    for (int i = 0; i < 4; ++i) out[i] = static_cast<uint32_t>(c[i]);
  }
};

}  // namespace ldpk
