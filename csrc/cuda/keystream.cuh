// SPDX-License-Identifier: Apache-2.0
// Blocks of a keystream as the GPU computes them, to be held to the ciphers' published vectors.
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

}  // namespace ldpk
