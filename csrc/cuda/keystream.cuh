// SPDX-License-Identifier: Apache-2.0
// Blocks of a keystream as the GPU computes them, to be held to the ciphers' published vectors; and a device's own
// source of keys.
#pragma once

#include "../chacha.h"
#include "../philox.h"
#include "plan.h"

namespace ldpk {

constexpr int kKeystreamThreads = 256;

template <class Cipher>
__global__ void __launch_bounds__(kKeystreamThreads)
    keystream_kernel(const uint32_t* key_words, uint32_t stream, uint64_t first_block, int64_t blocks, uint32_t* out) {
  const Key key = load_key<Cipher>(key_words);
  const int64_t threads = int64_t{gridDim.x} * kKeystreamThreads;
  for (int64_t b = int64_t{blockIdx.x} * kKeystreamThreads + threadIdx.x; b < blocks; b += threads) {
    uint32_t words[Cipher::block_words];
    Cipher::block(key, stream, 0, first_block + b, words);
#pragma unroll
    for (int w = 0; w < Cipher::block_words; ++w) out[b * Cipher::block_words + w] = words[w];
  }
}

// A device's source of keys: a ChaCha20 key and the number of the next derived key, which is the first eight words of
// the block of that number (docs/rng.md). The number is taken by an atomic addition, so that no two uses have the same,
// whatever streams or graphs they run in.
struct KeyState {
  uint32_t key[ChaCha20::key_words];
  unsigned long long next;
};
static_assert(sizeof(KeyState) == 40, "five int64 numbers of ldpkernels/ops/keys.py");

__global__ void next_key_kernel(KeyState* state, uint32_t* out) {
  uint32_t words[ChaCha20::block_words];
  ChaCha20::block(load_key<ChaCha20>(state->key), 0, 0, atomicAdd(&state->next, 1ull), words);
#pragma unroll
  for (int w = 0; w < ChaCha20::key_words; ++w) out[w] = words[w];
}

}  // namespace ldpk
