// SPDX-License-Identifier: Apache-2.0
// Which AES a machine has, and the one for every machine.
#include "aes_unit.h"
#include "detect.h"

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace ldpk {
namespace {

using Four = uint32_t[AesPlanes::blocks][4];

void expand_by_logic(uint32_t* words) {
  Aes128::expand(words, [](uint32_t w) {
    Four column = {{w}};
    AesPlanes planes(column);
    planes.sub_bytes();
    planes.store(column);
    return column[0][0];
  });
}

// block(b, words) fills the words of block b, use(b, words) takes them encrypted.
template <class Block, class Use>
void encrypt_all(const Key& key, int64_t blocks, Block block, Use use) {
  AesPlanes keys[Aes128::rounds + 1];
  for (int r = 0; r <= Aes128::rounds; ++r) {
    Four spread;
    for (auto& words : spread) memcpy(words, key.words + 4 * r, 16);
    keys[r] = AesPlanes(spread);
  }
  for (int64_t b = 0; b < blocks; b += AesPlanes::blocks) {
    const int64_t n = blocks - b < AesPlanes::blocks ? blocks - b : AesPlanes::blocks;
    Four words = {};
    for (int64_t i = 0; i < n; ++i) block(b + i, words[i]);
    AesPlanes planes(words);
    planes.add(keys[0]);
    for (int r = 1; r <= Aes128::rounds; ++r) {
      planes.sub_bytes();
      planes.shift_rows();
      if (r < Aes128::rounds) planes.mix_columns();
      planes.add(keys[r]);
    }
    planes.store(words);
    for (int64_t i = 0; i < n; ++i) use(b + i, words[i]);
  }
}

void keystream_by_logic(const Key& key, uint32_t stream, uint64_t first, int64_t blocks, uint32_t* out) {
  encrypt_all(
      key, blocks, [&](int64_t b, uint32_t* words) { Aes128::counter(first + b, stream, 0, words); },
      [&](int64_t b, const uint32_t* words) { memcpy(out + 4 * b, words, 16); });
}

void encrypt_by_logic(const Key& key, int64_t blocks, uint32_t* words) {
  encrypt_all(
      key, blocks, [&](int64_t b, uint32_t* block) { memcpy(block, words + 4 * b, 16); },
      [&](int64_t b, const uint32_t* block) { memcpy(words + 4 * b, block, 16); });
}

constexpr AesUnit kAesLogic = {"logic", 32, expand_by_logic, keystream_by_logic, encrypt_by_logic, nullptr, nullptr};

}  // namespace

const std::vector<const AesUnit*>& aes_units() {
  static const std::vector<const AesUnit*> units = [] {
    std::vector<const AesUnit*> found;
#if defined(__x86_64__)
    const X86 machine = this_x86();
    if (machine.vaes512()) found.push_back(&kVaes512);
    if (machine.vaes256()) found.push_back(&kVaes256);
    if (machine.aes()) found.push_back(&kAesNi);
#elif defined(__aarch64__) && defined(__linux__)
    if (getauxval(AT_HWCAP) & HWCAP_AES) found.push_back(&kAesNeon);
#elif defined(__aarch64__)
    found.push_back(&kAesNeon);  // every processor of Apple's has it
#endif
    found.push_back(&kAesLogic);
    return found;
  }();
  return units;
}

const AesUnit& aes_unit(int bits) {
  for (const AesUnit* unit : aes_units()) {
    if (unit->bits <= bits) return *unit;
  }
  return kAesLogic;
}

}  // namespace ldpk
