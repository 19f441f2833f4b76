// SPDX-License-Identifier: Apache-2.0
// Keystream as the kernels draw it, and a block of a cipher alone.
#pragma once

#include <string>

#include "../chacha.h"
#include "../philox.h"
#include "call.h"

namespace ldpk {

inline Table<uint32_t> keystream(const Table<uint32_t>& key_words, uint32_t stream, uint64_t first_block,
                                 int64_t blocks, const std::string& isa) {
  const Key key = key_of(key_words);
  Table<uint32_t> out(blocks * (key.size == ChaCha20::key_words ? ChaCha20::block_words : Philox::block_words));
  const Kernels& kernels = kernels_named(isa);
  uint32_t* words = out.mutable_data();
  const Unlocked unlocked;
  kernels.keystream(key, stream, first_block, blocks, words);
  return out;
}

// One cipher block at a counter of one's own: the published test vectors, and the derivation of keys.
inline Table<uint32_t> cipher_block(const Table<uint32_t>& key_words, const Table<uint32_t>& counter) {
  if (counter.size() != 4) throw std::invalid_argument("a counter has 4 words");
  const Key key = key_of(key_words);
  const uint32_t* c = counter.data();
  const uint64_t index = c[0] | uint64_t{c[1]} << 32;
  uint32_t words[16];
  if (key.size == ChaCha20::key_words) {
    ChaCha20::block(key, c[2], c[3], index, words);
    return Table<uint32_t>(16, words);
  }
  uint32_t(&four)[4] = reinterpret_cast<uint32_t(&)[4]>(words);
  Philox::block(key, c[2], c[3], index, four);
  return Table<uint32_t>(4, words);
}

inline void bind_keystreams(py::module_& m) {
  m.def("keystream", keystream);
  m.def("cipher_block", cipher_block);
}

}  // namespace ldpk
