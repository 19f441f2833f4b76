// SPDX-License-Identifier: Apache-2.0
// Keystream as the kernels draw it, and a block of a cipher alone.
#pragma once

#include <string>
#include <vector>

#include "call.h"

namespace ldpk {

inline Table<uint32_t> keystream(const Table<uint32_t>& key_words, uint32_t stream, uint64_t first_block,
                                 int64_t blocks, const std::string& isa) {
  const Key key = key_of(key_words);
  Table<uint32_t> out(blocks * block_words(key));
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
  uint32_t(&four)[4] = reinterpret_cast<uint32_t(&)[4]>(words);
  if (key.size == ChaCha20::key_words) {
    ChaCha20::block(key, c[2], c[3], index, words);
  } else if (key.size == Philox::key_words) {
    Philox::block(key, c[2], c[3], index, four);
  } else {
    memcpy(four, c, sizeof(four));
    aes_units().front()->encrypt(key, 1, four);
  }
  return Table<uint32_t>(block_words(key), words);
}

// The same of one of a machine's units for AES, whatever the lanes: schedule, blocks and keystream.
inline const AesUnit& aes_unit_named(const std::string& name) {
  for (const AesUnit* unit : aes_units()) {
    if (name == unit->name) return *unit;
  }
  throw std::invalid_argument("this machine has no '" + name + "' for AES");
}

inline Table<uint32_t> aes_blocks(const Table<uint32_t>& key_words, const Table<uint32_t>& blocks,
                                  const std::string& unit_name) {
  if (key_words.size() != Aes128::key_words || blocks.size() % 4 != 0)
    throw std::invalid_argument("a key and each block have 4 words");
  const AesUnit& unit = aes_unit_named(unit_name);
  Key key{};
  key.size = Aes128::key_words;
  memcpy(key.words, key_words.data(), 16);
  unit.expand(key.words);
  Table<uint32_t> out(blocks.size(), blocks.data());
  unit.encrypt(key, blocks.size() / 4, out.mutable_data());
  return out;
}

inline Table<uint32_t> aes_keystream(const Table<uint32_t>& key_words, uint32_t stream, uint64_t first_block,
                                     int64_t blocks, const std::string& unit_name) {
  const AesUnit& unit = aes_unit_named(unit_name);
  const Key key = key_of(key_words);
  if (key.size != Aes128::key_words || blocks < 0)
    throw std::invalid_argument("a key has 4 words, and blocks are 0 or more");
  std::vector<uint32_t> words(4 * (blocks + kAesSpare));
  unit.keystream(key, stream, first_block, blocks, words.data());
  return Table<uint32_t>(4 * blocks, words.data());
}

inline void bind_keystreams(py::module_& m) {
  m.def("keystream", keystream);
  m.def("cipher_block", cipher_block);
  m.def("aes_blocks", aes_blocks);
  m.def("aes_keystream", aes_keystream);
  m.def("aes_units", [] {
    std::vector<std::string> names;
    for (const AesUnit* unit : aes_units()) names.emplace_back(unit->name);
    return names;
  });
  py::set isas;
  for (const Kernels* k : available_kernels()) {
    if (&aes_unit(k->bits) != aes_units().back()) isas.add(k->name);
  }
  m.attr("AES_ISAS") = py::frozenset(isas);
}

}  // namespace ldpk
