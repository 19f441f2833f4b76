// SPDX-License-Identifier: Apache-2.0
// AES by instructions that do a round: what the units have in common. A unit has
//   Blocks                   a register of `blocks` blocks
//   load, store, spread      a register from memory and to it, and a block to all places of one
//   begun(x, k)              x, with the first key where instructions add a round's key behind the S-box
//   round(x, before, k)      a round with its key, or with the one before where instructions add it ahead of the S-box
//   last(x, before, k)       the last round with all that is left to add
//   counters(first, stream)  the blocks to encrypt, of which the first has this number
//   after(x, n)              the same, with numbers that are n greater
//   sub_word(w)              the S-box on the bytes of a word
//
// The functions are templates over units, as each unit's file is compiled for other instructions.
#pragma once

#include <type_traits>

#include "aes_unit.h"

namespace ldpk {

constexpr int kAesChains = 8;  // registers that go through the rounds together: a round has a latency of 3 to 4 cycles

template <class Unit>
struct AesRoundKeys {
  typename Unit::Blocks keys[Aes128::rounds + 1];

  explicit LDPK_FN AesRoundKeys(const Key& key) {
    for (int i = 0; i <= Aes128::rounds; ++i) keys[i] = Unit::spread(key.words + 4 * i);
  }

  template <int chains>
  LDPK_FN void encrypt(typename Unit::Blocks (&x)[chains]) const {
#pragma GCC unroll 8
    for (auto& block : x) block = Unit::begun(block, keys[0]);
#pragma GCC unroll 9
    for (int i = 1; i < Aes128::rounds; ++i) {
#pragma GCC unroll 8
      for (auto& block : x) block = Unit::round(block, keys[i - 1], keys[i]);
    }
#pragma GCC unroll 8
    for (auto& block : x) block = Unit::last(block, keys[Aes128::rounds - 1], keys[Aes128::rounds]);
  }
};

// put(b, x) with registers of blocks b and the following, in order, until there are `blocks` or some more.
template <class Unit, class Put>
LDPK_FN void aes_blocks(const Key& key, uint32_t stream, uint64_t first, int64_t blocks, Put put) {
  static_assert(kAesSpare % (Unit::blocks * kAesChains) == 0);
  const AesRoundKeys<Unit> keys(key);
  typename Unit::Blocks counter = Unit::counters(first, stream);
  int64_t b = 0;
  const auto step = [&](auto chains) {
    typename Unit::Blocks x[chains()];
#pragma GCC unroll 8
    for (auto& block : x) {
      block = counter;
      counter = Unit::after(counter, Unit::blocks);
    }
    keys.encrypt(x);
#pragma GCC unroll 8
    for (const auto& block : x) {
      put(b, block);
      b += Unit::blocks;
    }
  };
  while (blocks - b > Unit::blocks * kAesChains / 2) step(std::integral_constant<int, kAesChains>{});
  while (b < blocks) step(std::integral_constant<int, 1>{});
}

template <class Unit>
void aes_keystream(const Key& key, uint32_t stream, uint64_t first, int64_t blocks, uint32_t* out) {
  aes_blocks<Unit>(key, stream, first, blocks,
                   [&](int64_t b, typename Unit::Blocks x) { Unit::store(out + 4 * b, x); });
}

template <class Unit, class Word>
void aes_add(const Key& key, bool minus, uint32_t stream, uint64_t first, int64_t blocks, void* numbers) {
  typedef Word Words __attribute__((vector_size(sizeof(typename Unit::Blocks))));
  uint32_t* out = static_cast<uint32_t*>(numbers);
  const auto with = [&](auto combined) {
    aes_blocks<Unit>(key, stream, first, blocks, [&](int64_t b, typename Unit::Blocks x) {
      const Words sum = combined((Words)Unit::load(out + 4 * b), (Words)x);
      Unit::store(out + 4 * b, (typename Unit::Blocks)sum);
    });
  };
  minus ? with([](Words a, Words x) { return a - x; }) : with([](Words a, Words x) { return a + x; });
}

template <class Unit>
void aes_encrypt(const Key& key, int64_t blocks, uint32_t* words) {
  const AesRoundKeys<Unit> keys(key);
  int64_t b = 0;
  const auto step = [&](auto chains) {
    typename Unit::Blocks x[chains()];
    for (int i = 0; i < chains(); ++i) x[i] = Unit::load(words + 4 * (b + i * Unit::blocks));
    keys.encrypt(x);
    for (const auto& block : x) {
      Unit::store(words + 4 * b, block);
      b += Unit::blocks;
    }
  };
  while (blocks - b >= Unit::blocks * kAesChains) step(std::integral_constant<int, kAesChains>{});
  while (blocks - b >= Unit::blocks) step(std::integral_constant<int, 1>{});
  if (b < blocks) {
    uint32_t padded[4 * Unit::blocks] = {};
    memcpy(padded, words + 4 * b, (blocks - b) * 16);
    typename Unit::Blocks x[1] = {Unit::load(padded)};
    keys.encrypt(x);
    Unit::store(padded, x[0]);
    memcpy(words + 4 * b, padded, (blocks - b) * 16);
  }
}

template <class Unit>
void aes_expand(uint32_t* words) {
  Aes128::expand(words, [](uint32_t w) { return Unit::sub_word(w); });
}

template <class Unit>
constexpr AesUnit aes_unit_of(const char* name) {
  return {name,
          128 * Unit::blocks,
          aes_expand<Unit>,
          aes_keystream<Unit>,
          aes_encrypt<Unit>,
          aes_add<Unit, uint16_t>,
          aes_add<Unit, uint32_t>};
}

}  // namespace ldpk
