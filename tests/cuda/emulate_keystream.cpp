// SPDX-License-Identifier: Apache-2.0
// The keystream kernel of csrc/cuda on the host, thread by thread, and its derivation of keys. Compiled by
// tests/test_ciphers.py.
#include "../../csrc/cuda/keystream.cuh"

extern "C" void emulate(const uint32_t* key, int key_words, uint32_t stream, uint64_t first_block, int64_t blocks,
                        uint32_t* out) {
  constexpr int64_t threads = 7;
  for (int64_t thread = 0; thread < threads; ++thread) {
    if (key_words == ldpk::ChaCha20::key_words) {
      ldpk::keystream_thread<ldpk::ChaCha20>(key, stream, first_block, blocks, out, thread, threads);
    } else {
      ldpk::keystream_thread<ldpk::Philox>(key, stream, first_block, blocks, out, thread, threads);
    }
  }
}

extern "C" void derive(const ldpk::KeyState* state, uint64_t number, uint32_t* out) {
  ldpk::derived_key(*state, number, out);
}
