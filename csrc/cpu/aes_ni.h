// SPDX-License-Identifier: Apache-2.0
// AES-NI: a block at a time. With AVX, whose three-operand forms the lanes beside it use too.
#pragma once

#include <immintrin.h>

#include "aes_rounds.h"

namespace ldpk {

// The wider units take it for their schedules. Four equal columns, so that it does not matter how rows move.
LDPK_FN uint32_t aes_sub_word(uint32_t w) {
  const __m128i column = _mm_set1_epi32(static_cast<int>(w));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_aesenclast_si128(column, _mm_setzero_si128())));
}

struct AesNi {
  using Blocks = __m128i;
  static constexpr int blocks = 1;

  static LDPK_FN Blocks load(const uint32_t* p) { return _mm_loadu_si128((const __m128i*)p); }
  static LDPK_FN void store(uint32_t* p, Blocks x) { _mm_storeu_si128((__m128i*)p, x); }
  static LDPK_FN Blocks spread(const uint32_t* p) { return load(p); }
  static LDPK_FN Blocks begun(Blocks x, Blocks k) { return _mm_xor_si128(x, k); }
  static LDPK_FN Blocks round(Blocks x, Blocks, Blocks k) { return _mm_aesenc_si128(x, k); }
  static LDPK_FN Blocks last(Blocks x, Blocks, Blocks k) { return _mm_aesenclast_si128(x, k); }
  static LDPK_FN Blocks counters(uint64_t first, uint32_t stream) { return _mm_set_epi64x(stream, first); }
  static LDPK_FN Blocks after(Blocks x, int n) { return _mm_add_epi64(x, _mm_set_epi64x(0, n)); }
  static LDPK_FN uint32_t sub_word(uint32_t w) { return aes_sub_word(w); }
};

}  // namespace ldpk
