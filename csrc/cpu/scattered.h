// SPDX-License-Identifier: Apache-2.0
// Draws of elements and keystreams that follow no order, for those few elements that a mechanism has not finished when
// it has read the keystreams of a tile. A lane computes a block of its own.
#pragma once

#include "keystream.h"

namespace ldpk {

// Arrays are read and written up to the next multiple of this many elements.
constexpr int kScatterStep = 32;

// out[i] is the 64-bit draw of element elements[i] in keystream streams[i].
template <class Lanes>
void scattered_draws(Philox, const Key& key, const uint64_t* elements, const uint64_t* streams, int64_t n,
                     uint64_t* out) {
  using u64 = typename Lanes::u64;
  constexpr int lanes = Lanes::blocks, chains = lanes == 1 ? 1 : 2, step = lanes * chains;
  static_assert(kScatterStep % step == 0);
  constexpr uint64_t per_block = kDrawsPerBlock<uint64_t, Philox>;
  const PhiloxKeys<Lanes> keys(key);
  for (int64_t i = 0; i < n; i += step) {
    u64 c[chains][4];
    for (int r = 0; r < chains; ++r) {
      u64 element;
      memcpy(&element, elements + i + r * lanes, sizeof(u64));
      memcpy(&c[r][2], streams + i + r * lanes, sizeof(u64));
      c[r][0] = element >> 1;
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
        const uint64_t word = elements[at] % per_block * 2;
        out[at] = static_cast<uint32_t>(words[word][l]) | words[word + 1][l] << 32;
      }
    }
  }
}

template <class Lanes>
LDPK_CALL void scattered_aes(const Key& key, const uint64_t* elements, const uint64_t* streams, int64_t n,
                             uint64_t* out) {
  constexpr uint64_t per_block = kDrawsPerBlock<uint64_t, FourWords>;
  uint32_t words[kScatterStep][4];
  for (int64_t i = 0; i < n; i += kScatterStep) {
    const int64_t count = n - i < kScatterStep ? n - i : kScatterStep;
    for (int64_t j = 0; j < count; ++j)
      Aes128::counter(elements[i + j] / per_block, static_cast<uint32_t>(streams[i + j]), 0, words[j]);
    aes_for<Lanes>().encrypt(key, count, words[0]);
    for (int64_t j = 0; j < count; ++j) memcpy(out + i + j, words[j] + elements[i + j] % per_block * 2, 8);
  }
}

template <class Lanes>
LDPK_FN void scattered_draws(FourWords, const Key& key, const uint64_t* elements, const uint64_t* streams, int64_t n,
                             uint64_t* out) {
  if (is_aes(key)) return scattered_aes<Lanes>(key, elements, streams, n, out);
  scattered_draws<Lanes>(Philox{}, key, elements, streams, n, out);
}

template <class Lanes, int sets>
LDPK_FN void scattered_chacha(const Key& key, const uint64_t* elements, const uint64_t* streams, uint64_t* out) {
  using u32 = typename Lanes::u32;
  constexpr int lanes = Lanes::count, n = lanes * sets;
  constexpr uint64_t per_block = kDrawsPerBlock<uint64_t, ChaCha20>;
  uint32_t counters[3][n];
  for (int i = 0; i < n; ++i) {
    const uint64_t block = elements[i] / per_block;
    counters[0][i] = static_cast<uint32_t>(block);
    counters[1][i] = static_cast<uint32_t>(block >> 32);
    counters[2][i] = static_cast<uint32_t>(streams[i]);
  }
  const auto counter = [&](int s, int i) {
    u32 words = Lanes::broadcast_u32(0);
    if (i < 3) memcpy(&words, counters[i] + s * lanes, sizeof(words));
    return words;
  };
  u32 words[sets][16];
  chacha_blocks<Lanes, sets>(key, counter, words);
  uint32_t columns[sets][16][lanes];
  memcpy(columns, words, sizeof(columns));
  for (int i = 0; i < n; ++i) {
    const auto& column = columns[i / lanes];
    const uint64_t at = elements[i] % per_block;
    out[i] = column[2 * at][i % lanes] | uint64_t{column[2 * at + 1][i % lanes]} << 32;
  }
}

template <class Lanes>
void scattered_draws(ChaCha20, const Key& key, const uint64_t* elements, const uint64_t* streams, int64_t n,
                     uint64_t* out) {
  constexpr int lanes = Lanes::count, sets = kChaChaSets<Lanes>;
  static_assert(kScatterStep % (lanes * sets) == 0);
  for (int64_t i = 0; i < n;) {
    const bool many = n - i > lanes * sets / 2;
    if (many) {
      scattered_chacha<Lanes, sets>(key, elements + i, streams + i, out + i);
    } else {
      scattered_chacha<Lanes, 1>(key, elements + i, streams + i, out + i);
    }
    i += many ? lanes * sets : lanes;
  }
}

}  // namespace ldpk
