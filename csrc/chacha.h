// SPDX-License-Identifier: Apache-2.0
// ChaCha20 (Bernstein 2008; RFC 8439), the generator for deployment. Counter and nonce are those of docs/rng.md:
// (block, block >> 32, stream, domain).
#pragma once

#include "lanes.h"

namespace ldpk {

struct ChaCha20 {
  static constexpr int key_words = 8;
  static constexpr int block_words = 16;
  static constexpr int double_rounds = 10;

  // The first words of the state, before the counter.
  static LDPK_FN uint32_t constant(const Key& key, int word) {
    constexpr uint32_t expand[4] = {0x61707865u, 0x3320646eu, 0x79622d32u, 0x6b206574u};
    return word < 4 ? expand[word] : key.words[word - 4];
  }

  // A round of columns, or one of diagonals; a word of the state has one block a lane.
  template <class Lanes, bool diagonal>
  static LDPK_FN void round(typename Lanes::u32 (&x)[16]) {
    for (int i = 0; i < 4; ++i) {
      quarter<Lanes>(x[i], x[4 + (i + diagonal) % 4], x[8 + (i + 2 * diagonal) % 4], x[12 + (i + 3 * diagonal) % 4]);
    }
  }

  static LDPK_FN void block(const Key& key, uint32_t stream, uint32_t domain, uint64_t index, uint32_t (&out)[16]) {
    const uint32_t counter[4] = {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), stream, domain};
    for (int i = 0; i < 12; ++i) out[i] = constant(key, i);
    for (int i = 0; i < 4; ++i) out[12 + i] = counter[i];
    for (int i = 0; i < double_rounds; ++i) {
      round<ScalarLanes, false>(out);
      round<ScalarLanes, true>(out);
    }
    for (int i = 0; i < 12; ++i) out[i] += constant(key, i);
    for (int i = 0; i < 4; ++i) out[12 + i] += counter[i];
  }

 private:
  template <class Lanes, class Word>
  static LDPK_FN void quarter(Word& a, Word& b, Word& c, Word& d) {
    a += b, d ^= a, d = Lanes::template rotate<16>(d);
    c += d, b ^= c, b = Lanes::template rotate<12>(b);
    a += b, d ^= a, d = Lanes::template rotate<8>(d);
    c += d, b ^= c, b = Lanes::template rotate<7>(b);
  }
};

}  // namespace ldpk
