// SPDX-License-Identifier: Apache-2.0
// Blocks of a keystream as the GPU computes them, to be held to the ciphers' published vectors; and a device's own
// source of keys.
#pragma once

#include "../chacha.h"
#include "../philox.h"
#include "plan.h"

namespace ldpk {

constexpr int kKeystreamThreads = 256;

// The blocks of thread `thread` of `threads`.
template <class Cipher>
LDPK_FN void keystream_thread(const uint32_t* key_words, uint32_t stream, uint64_t first_block, int64_t blocks,
                              uint32_t* out, int64_t thread, int64_t threads) {
  const Key key = load_key<Cipher>(key_words);
  for (int64_t b = thread; b < blocks; b += threads) {
    uint32_t words[Cipher::block_words];
    Cipher::block(key, stream, 0, first_block + b, words);
#pragma unroll
    for (int w = 0; w < Cipher::block_words; ++w) out[b * Cipher::block_words + w] = words[w];
  }
}

#if defined(__CUDACC__)
template <class Cipher>
__global__ void __launch_bounds__(kKeystreamThreads)
    keystream_kernel(const uint32_t* key_words, uint32_t stream, uint64_t first_block, int64_t blocks, uint32_t* out) {
  keystream_thread<Cipher>(key_words, stream, first_block, blocks, out,
                           int64_t{blockIdx.x} * kKeystreamThreads + threadIdx.x,
                           int64_t{gridDim.x} * kKeystreamThreads);
}
#endif

// A device's source of keys: a ChaCha20 key and the number of the next derived key, which is the first eight words of
// the block of that number (docs/rng.md). The number is taken by an atomic addition, so that no two uses have the same,
// whatever streams or graphs they run in.
struct KeyState {
  uint32_t key[ChaCha20::key_words];
  unsigned long long next;
};
static_assert(sizeof(KeyState) == 40, "five int64 numbers of ldpkernels/ops/keys.py");

LDPK_FN void derived_key(const KeyState& state, uint64_t number, uint32_t* out) {
  uint32_t words[ChaCha20::block_words];
  ChaCha20::block(load_key<ChaCha20>(state.key), 0, 0, number, words);
#pragma unroll
  for (int w = 0; w < ChaCha20::key_words; ++w) out[w] = words[w];
}

#if defined(__CUDACC__)
__global__ void next_key_kernel(KeyState* state, uint32_t* out) {
  derived_key(*state, atomicAdd(&state->next, 1ull), out);
}
#endif

}  // namespace ldpk
