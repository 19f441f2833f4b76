// SPDX-License-Identifier: Apache-2.0
// AES by what a processor has for it. This is a choice of its own, beside that of lanes: there are machines with AVX2
// or AVX-512 and AES instructions of 128 bits, and some with none. Each unit is a file, cpu/aes_*.cpp, compiled for it.
#pragma once

#include <vector>

#include "../aes.h"

namespace ldpk {

constexpr int kAesSpare = 32;

struct AesUnit {
  const char* name;
  int bits;  // of its registers; lanes that are narrower do not use it
  // The schedule behind the four words of a key.
  void (*expand)(uint32_t* words);
  // Blocks of a keystream under an expanded key; there is room for kAesSpare more.
  void (*keystream)(const Key&, uint32_t stream, uint64_t first_block, int64_t blocks, uint32_t* out);
  // Blocks of four words, each encrypted where it is.
  void (*encrypt)(const Key&, int64_t blocks, uint32_t* words);
  // A keystream added to numbers of 16 or 32 bits, or subtracted, of a multiple of kAesSpare blocks; null where nothing
  // is gained over adding from a buffer.
  void (*add16)(const Key&, bool minus, uint32_t stream, uint64_t first_block, int64_t blocks, void* numbers);
  void (*add32)(const Key&, bool minus, uint32_t stream, uint64_t first_block, int64_t blocks, void* numbers);
};

#if defined(__x86_64__)
extern const AesUnit kVaes512, kVaes256, kAesNi;
#elif defined(__aarch64__)
extern const AesUnit kAesNeon;
#endif

// Those of this machine, the widest first; the last is for any machine and takes no instructions for AES.
const std::vector<const AesUnit*>& aes_units();

// The widest for lanes of so many bits.
const AesUnit& aes_unit(int bits);

}  // namespace ldpk
