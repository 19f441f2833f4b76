// SPDX-License-Identifier: Apache-2.0
// ChaCha20 by registers: a word of the state is a register with one block a lane, and several such sets of blocks go
// through the rounds in turn.
#pragma once

#include "../chacha.h"

namespace ldpk {

// Sets, to cover the latency of the four chains that a round has: where an addition takes two cycles, one set keeps
// half of the units busy. With 32 registers two sets stay in them. With 16, a set that waits is in memory, where
// storing and loading it costs less than waiting.
template <class Lanes>
constexpr int kChaChaSets = Lanes::count >= 16  ? 2
                            : Lanes::count >= 8 ? 4
                                                : 1;

// The blocks of all lanes of all sets. counter(s, i) has word 12 + i of the blocks of set s.
template <class Lanes, int sets, class Counter>
LDPK_FN void chacha_blocks(const Key& key, Counter counter, typename Lanes::u32 (&x)[sets][16]) {
#pragma GCC unroll 4
  for (int s = 0; s < sets; ++s) {
    for (int i = 0; i < 12; ++i) x[s][i] = Lanes::broadcast_u32(ChaCha20::constant(key, i));
    for (int i = 0; i < 4; ++i) x[s][12 + i] = counter(s, i);
  }
#pragma GCC unroll 1
  for (int i = 0; i < ChaCha20::double_rounds; ++i) {
#pragma GCC unroll 4
    for (int s = 0; s < sets; ++s) {
      ChaCha20::round<Lanes, false>(x[s]);
      if constexpr (sets > 2) asm volatile("" ::: "memory");  // else GCC keeps parts of the next set, and spills more
    }
#pragma GCC unroll 4
    for (int s = 0; s < sets; ++s) {
      ChaCha20::round<Lanes, true>(x[s]);
      if constexpr (sets > 2) asm volatile("" ::: "memory");
    }
  }
#pragma GCC unroll 4
  for (int s = 0; s < sets; ++s) {
    for (int i = 0; i < 12; ++i) x[s][i] += Lanes::broadcast_u32(ChaCha20::constant(key, i));
    for (int i = 0; i < 4; ++i) x[s][12 + i] += counter(s, i);
  }
}

// Blocks first, first + 1, ... of a keystream, as many as the sets have lanes.
template <class Lanes, int sets>
__attribute__((noinline)) void fill_chacha(const Key& key, uint32_t stream, uint64_t first, uint32_t* out) {
  using u32 = typename Lanes::u32;
  constexpr int lanes = Lanes::count;
  uint32_t numbers[lanes];
  for (int l = 0; l < lanes; ++l) numbers[l] = l;
  u32 lane;
  memcpy(&lane, numbers, sizeof(lane));
  const u32 zero = lane ^ lane;
  const auto counter = [&](int s, int i) {
    const uint64_t block = first + s * lanes;
    const uint32_t low = static_cast<uint32_t>(block);
    if (i == 0) return lane + low;
    if (i > 1) return zero + (i == 2 ? stream : 0);
    const u32 carry = Lanes::select(Lanes::less(lane + low, zero + low), zero + 1u, zero);
    return carry + static_cast<uint32_t>(block >> 32);
  };
  u32 words[sets][16];
  chacha_blocks<Lanes, sets>(key, counter, words);
#pragma GCC unroll 4
  for (int s = 0; s < sets; ++s) Lanes::store_blocks(out + 16 * lanes * s, words[s]);
}

}  // namespace ldpk
