// SPDX-License-Identifier: Apache-2.0
// A device's own source of keys. Its state is a ChaCha20 key and the number of the next derived key, which is the first
// eight words of the block of that number (docs/rng.md). The number is taken by an atomic addition, so that no two uses
// have the same, whatever streams or graphs they run in.
#pragma once

#include "../chacha.h"
#include "plan.h"

namespace ldpk {

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
