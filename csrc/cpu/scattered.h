// SPDX-License-Identifier: Apache-2.0
// Draws of elements and keystreams that follow no order, for those few elements that a mechanism has not finished when
// it has read the keystreams of a tile. A lane computes a block of its own.
#pragma once

#include "keystream.h"

namespace ldpk {

// Arrays are read and written up to the next multiple of this many elements.
constexpr int kScatterStep = 32;

template <class Word, class Cipher>
constexpr int kDrawsPerBlock = Cipher::block_words * 4 / sizeof(Word);

// The draws, of as many bits as a Word has, of elements [first, first + n) of a keystream; the pointer is into
// `buffer`, which has room for them and for two steps more.
template <class Lanes, class Word, class Cipher>
LDPK_FN const Word* draws_of(Cipher cipher, const Key& key, uint32_t stream, uint64_t first, int64_t n,
                             uint32_t* buffer) {
  constexpr int per_block = kDrawsPerBlock<Word, Cipher>;
  const int64_t skipped = first % per_block;
  fill<Lanes>(cipher, key, stream, first / per_block, (skipped + n + per_block - 1) / per_block, buffer);
  return reinterpret_cast<const Word*>(buffer) + skipped;
}

// out[i] is the draw of element elements[i] in keystream streams[i].
template <class Lanes, class Word>
void scattered_draws(Philox, const Key& key, const uint64_t* elements, const uint64_t* streams, int64_t n, Word* out) {
  using u64 = typename Lanes::u64;
  constexpr int lanes = Lanes::blocks, chains = lanes == 1 ? 1 : 2, step = lanes * chains;
  static_assert(kScatterStep % step == 0);
  constexpr uint64_t per_block = kDrawsPerBlock<Word, Philox>, words_each = 4 / per_block;
  const PhiloxKeys<Lanes> keys(key);
  for (int64_t i = 0; i < n; i += step) {
    u64 c[chains][4];
    for (int r = 0; r < chains; ++r) {
      u64 element;
      memcpy(&element, elements + i + r * lanes, sizeof(u64));
      memcpy(&c[r][2], streams + i + r * lanes, sizeof(u64));
      c[r][0] = element >> (per_block == 4 ? 2 : 1);
      c[r][1] = c[r][0] >> 32;
      c[r][3] = element ^ element;
    }
#pragma GCC unroll 2
    for (int r = 0; r < chains; ++r) keys.rounds(c[r]);
    for (int r = 0; r < chains; ++r) {
      uint64_t words[4][lanes];
      memcpy(words, c[r], sizeof(words));
      for (int l = 0; l < lanes; ++l) {
        const int64_t at = i + r * lanes + l;
        const uint64_t word = elements[at] % per_block * words_each;
        const uint64_t low = static_cast<uint32_t>(words[word][l]);
        out[at] = static_cast<Word>(words_each == 1 ? low : low | words[(word + 1) % 4][l] << 32);
      }
    }
  }
}

template <class Lanes, class Word>
void scattered_draws(ChaCha20, const Key& key, const uint64_t* elements, const uint64_t* streams, int64_t n,
                     Word* out) {
  constexpr int lanes = Lanes::count;
  static_assert(kScatterStep % lanes == 0);
  typedef uint32_t u32 __attribute__((vector_size(4 * lanes)));
  constexpr uint64_t per_block = kDrawsPerBlock<Word, ChaCha20>;
  for (int64_t i = 0; i < n; i += lanes) {
    uint32_t low[lanes], high[lanes], stream[lanes];
    for (int l = 0; l < lanes; ++l) {
      const uint64_t block = elements[i + l] / per_block;
      low[l] = static_cast<uint32_t>(block);
      high[l] = static_cast<uint32_t>(block >> 32);
      stream[l] = static_cast<uint32_t>(streams[i + l]);
    }
    u32 counter[3], words[16];
    memcpy(&counter[0], low, sizeof(low));
    memcpy(&counter[1], high, sizeof(high));
    memcpy(&counter[2], stream, sizeof(stream));
    ChaCha20::rounds(key, counter[0], counter[1], counter[2], 0, words);
    uint32_t columns[16][lanes];
    memcpy(columns, words, sizeof(columns));
    for (int l = 0; l < lanes; ++l) {
      const uint64_t at = elements[i + l] % per_block;
      if constexpr (sizeof(Word) == 4) {
        out[i + l] = columns[at][l];
      } else {
        out[i + l] = columns[2 * at][l] | uint64_t{columns[2 * at + 1][l]} << 32;
      }
    }
  }
}

}  // namespace ldpk
