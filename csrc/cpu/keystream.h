// SPDX-License-Identifier: Apache-2.0
// Runs of keystream into a buffer that stays in the first-level cache: a mechanism then reads its draws in order and
// knows neither the cipher nor how many blocks a register computes at once.
#pragma once

#include "../philox.h"
#include "aes_unit.h"
#include "chacha_blocks.h"

namespace ldpk {

// Blocks are written in whole steps; the buffer needs room for one step more than was asked for.
constexpr int kStepBlocks = 32;
constexpr int kStepBytes = kStepBlocks * ChaCha20::block_words * 4;

// Philox or AES, which the size of a key tells: what reads keystream from a buffer is compiled for both at once.
struct FourWords {
  static constexpr int block_words = 4;
};
static_assert(Philox::block_words == 4 && Aes128::block_words == 4);

// use(cipher) with the kind of cipher that a key is for.
template <class Use>
LDPK_FN decltype(auto) with_cipher(const Key& key, Use use) {
  return key.size == ChaCha20::key_words ? use(ChaCha20{}) : use(FourWords{});
}

LDPK_FN bool is_aes(const Key& key) { return key.size == Aes128::key_words; }

template <class Lanes>
LDPK_FN const AesUnit& aes_for() {
  return aes_unit(32 * Lanes::count);
}

// Independent chains, to cover the multiplier's latency.
template <class Lanes>
constexpr int kPhiloxChains = Lanes::blocks >= 8 ? 4 : 2;

// The keys of all rounds, spread over the lanes. Loops over blocks read them from memory: GCC, which finds no registers
// for them, would else compute them anew in every step.
template <class Lanes>
struct PhiloxKeys {
  typename Lanes::u64 round[Philox::round_count][2];

  explicit LDPK_FN PhiloxKeys(const Key& key) {
    uint32_t k0 = key.words[0], k1 = key.words[1];
    for (auto& pair : round) {
      pair[0] = typename Lanes::u64{} + uint64_t{k0};
      pair[1] = typename Lanes::u64{} + uint64_t{k1};
      Philox::add_to_key(k0, k1);
    }
  }

  LDPK_FN void rounds(typename Lanes::u64 (&c)[4]) const {
#pragma GCC unroll 10
    for (const auto& pair : round) Philox::round<Lanes>(c, pair[0], pair[1]);
  }
};

// Where all blocks have the high word of their number in common (`one_high`), most of the first three rounds is the
// same for all of them, and the compiler takes it out of the loop.
template <class Lanes, bool one_high>
LDPK_FN void fill_philox(const Key& key, uint32_t stream, uint64_t first_block, int64_t blocks, uint32_t* out) {
  using u64 = typename Lanes::u64;
  constexpr int registers = kPhiloxChains<Lanes>;
  const PhiloxKeys<Lanes> keys(key);
  // Lane l computes block l/2 of the first or of the second half, so that pairing lanes within 128 bits, which is all
  // that AVX does cheaply, leaves the blocks in order.
  u64 lane;
  for (int l = 0; l < Lanes::blocks; ++l) lane[l] = l / 2 + (l % 2) * (Lanes::blocks / 2);
  for (int64_t b = 0; b < blocks; b += registers * Lanes::blocks) {
    u64 c[registers][4];
    for (int r = 0; r < registers; ++r) {
      const u64 index = lane + (first_block + b + r * Lanes::blocks);
      c[r][0] = index;
      c[r][1] = one_high ? lane * 0 + (first_block >> 32) : index >> 32;
      c[r][2] = lane * 0 + uint64_t{stream};
      c[r][3] = lane * 0;
    }
#pragma GCC unroll 4
    for (int r = 0; r < registers; ++r) keys.rounds(c[r]);
#pragma GCC unroll 4
    for (int r = 0; r < registers; ++r) {
      const u64 w01 = Lanes::join_words(c[r][0], c[r][1]);
      const u64 w23 = Lanes::join_words(c[r][2], c[r][3]);
      const u64 halves[2] = {Lanes::even_pairs(w01, w23), Lanes::odd_pairs(w01, w23)};
      memcpy(out, halves, sizeof(halves));
      out += Lanes::blocks * 4;
    }
  }
}

template <class Lanes>
void fill(Philox, const Key& key, uint32_t stream, uint64_t first_block, int64_t blocks, uint32_t* out) {
  if constexpr (Lanes::blocks == 1) {
    for (int64_t b = 0; b < blocks; ++b, out += 4) {
      uint32_t words[4];
      Philox::block(key, stream, 0, first_block + b, words);
      memcpy(out, words, 16);
    }
  } else {
    const bool one_high = first_block >> 32 == (first_block + blocks + kStepBlocks) >> 32;
    if (one_high) {
      fill_philox<Lanes, true>(key, stream, first_block, blocks, out);
    } else {
      fill_philox<Lanes, false>(key, stream, first_block, blocks, out);
    }
  }
}

template <class Lanes>
LDPK_FN void fill(FourWords, const Key& key, uint32_t stream, uint64_t first_block, int64_t blocks, uint32_t* out) {
  if (is_aes(key)) return aes_for<Lanes>().keystream(key, stream, first_block, blocks, out);
  fill<Lanes>(Philox{}, key, stream, first_block, blocks, out);
}

template <class Lanes>
void fill(ChaCha20, const Key& key, uint32_t stream, uint64_t first_block, int64_t blocks, uint32_t* out) {
  constexpr int lanes = Lanes::count, sets = kChaChaSets<Lanes>;
  static_assert(kStepBlocks % (lanes * sets) == 0);
  if constexpr (lanes == 1) {
    for (int64_t b = 0; b < blocks; ++b, out += 16) {
      uint32_t words[16];
      ChaCha20::block(key, stream, 0, first_block + b, words);
      memcpy(out, words, 64);
    }
  } else {
    for (int64_t b = 0; b < blocks;) {
      const bool many = blocks - b > lanes * sets / 2;  // a set alone takes more than half the time of all together
      (many ? fill_chacha<Lanes, sets> : fill_chacha<Lanes, 1>)(key, stream, first_block + b, out + 16 * b);
      b += many ? lanes * sets : lanes;
    }
  }
}

// A block alone, for branches that are rarely taken.
template <class Lanes>
LDPK_FN void lone_block(ChaCha20, const Key& key, uint32_t stream, uint64_t index, uint32_t (&out)[16]) {
  ChaCha20::block(key, stream, 0, index, out);
}
template <class Lanes>
LDPK_FN void lone_block(FourWords, const Key& key, uint32_t stream, uint64_t index, uint32_t (&out)[4]) {
  if (!is_aes(key)) return Philox::block(key, stream, 0, index, out);
  Aes128::counter(index, stream, 0, out);
  aes_for<Lanes>().encrypt(key, 1, out);
}

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

}  // namespace ldpk
