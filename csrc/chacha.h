// SPDX-License-Identifier: Apache-2.0
// ChaCha20 (Bernstein 2008; RFC 8439), the generator for deployment. Counter and nonce are those of docs/rng.md:
// (block, block >> 32, stream, domain).
#pragma once

#include "common.h"

namespace ldpk {

struct ChaCha20 {
  static constexpr int key_words = 8;
  static constexpr int block_words = 16;

  // Word is uint32_t, or a vector of them: one block a lane. Stream is one of them too, or a number for all lanes.
  template <class Word, class Stream>
  static LDPK_FN void rounds(const Key& key, Word low, Word high, Stream stream, uint32_t domain, Word (&x)[16]) {
    const Word zero = low ^ low;
    const uint32_t constant[4] = {0x61707865u, 0x3320646eu, 0x79622d32u, 0x6b206574u};
    for (int i = 0; i < 4; ++i) x[i] = zero + constant[i];
    for (int i = 0; i < 8; ++i) x[4 + i] = zero + key.words[i];
    x[12] = low;
    x[13] = high;
    x[14] = zero + stream;
    x[15] = zero + domain;
    for (int round = 0; round < 10; ++round) {
      for (int i = 0; i < 4; ++i) quarter(x[i], x[4 + i], x[8 + i], x[12 + i]);
      for (int i = 0; i < 4; ++i) quarter(x[i], x[4 + (i + 1) % 4], x[8 + (i + 2) % 4], x[12 + (i + 3) % 4]);
    }
    for (int i = 0; i < 4; ++i) x[i] += constant[i];
    for (int i = 0; i < 8; ++i) x[4 + i] += key.words[i];
    x[12] += low;
    x[13] += high;
    x[14] += stream;
    x[15] += domain;
  }

  static LDPK_FN void block(const Key& key, uint32_t stream, uint32_t domain, uint64_t index, uint32_t (&out)[16]) {
    rounds(key, static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), stream, domain, out);
  }

 private:
  template <class Word>
  static LDPK_FN void quarter(Word& a, Word& b, Word& c, Word& d) {
    a += b, d ^= a, d = (d << 16) | (d >> 16);
    c += d, b ^= c, b = (b << 12) | (b >> 20);
    a += b, d ^= a, d = (d << 8) | (d >> 24);
    c += d, b ^= c, b = (b << 7) | (b >> 25);
  }
};

}  // namespace ldpk
