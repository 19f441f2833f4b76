// SPDX-License-Identifier: Apache-2.0
// What every kernel shares: where a function may run, and the description of one tensor's work.
#pragma once

#include <cstdint>

// Every helper is forced inline. The CPU kernels are compiled once for each instruction set; an out-of-line copy of an
// inline function could be merged by the linker across those files and run AVX-512 code on a machine without it.
// LDPK_CALL is for what is better called: members of templates that no two instruction sets share.
#if defined(__CUDACC__)
#define LDPK_FN __host__ __device__ __forceinline__
#define LDPK_CALL __host__ __device__ __noinline__
#else
#define LDPK_FN inline __attribute__((always_inline))
#define LDPK_CALL __attribute__((noinline))
#endif

namespace ldpk {

// One tensor of a launch. Its elements own the numbers first, first + 1, ... of the random stream (docs/rng.md);
// `first` is a multiple of 8. Fields are 8 bytes wide so that every backend can read the table as 64-bit integers.
struct Span {
  uint64_t data;
  uint64_t out;
  int64_t numel;
  int64_t first;
  int64_t dtype;
};

// 2 words: Philox4x32-10 with a 64-bit key. 4 words: AES-128, whose schedule follows them. 8 words: ChaCha20 with a
// 256-bit key.
struct Key {
  uint32_t words[44];
  int32_t size;
};

// Row i of an 8x8 bit matrix is byte i; rows become columns (Warren, Hacker's Delight, 7-3).
LDPK_FN uint64_t transpose_bits(uint64_t m) {
  uint64_t swap = (m ^ (m >> 7)) & 0x00aa00aa00aa00aaull;
  m ^= swap ^ (swap << 7);
  swap = (m ^ (m >> 14)) & 0x0000cccc0000ccccull;
  m ^= swap ^ (swap << 14);
  swap = (m ^ (m >> 28)) & 0x00000000f0f0f0f0ull;
  return m ^ swap ^ (swap << 28);
}

}  // namespace ldpk
