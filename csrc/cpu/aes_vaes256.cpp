// SPDX-License-Identifier: Apache-2.0
// VAES with AVX2: two blocks at a time.
#include "aes_ni.h"

namespace ldpk {
namespace {

struct Vaes256 {
  using Blocks = __m256i;
  static constexpr int blocks = 2;

  static LDPK_FN Blocks load(const uint32_t* p) { return _mm256_loadu_si256((const __m256i*)p); }
  static LDPK_FN void store(uint32_t* p, Blocks x) { _mm256_storeu_si256((__m256i*)p, x); }
  static LDPK_FN Blocks spread(const uint32_t* p) { return _mm256_broadcastsi128_si256(AesNi::load(p)); }
  static LDPK_FN Blocks begun(Blocks x, Blocks k) { return _mm256_xor_si256(x, k); }
  static LDPK_FN Blocks round(Blocks x, Blocks, Blocks k) { return _mm256_aesenc_epi128(x, k); }
  static LDPK_FN Blocks last(Blocks x, Blocks, Blocks k) { return _mm256_aesenclast_epi128(x, k); }
  static LDPK_FN Blocks counters(uint64_t first, uint32_t stream) {
    return _mm256_set_epi64x(stream, first + 1, stream, first);
  }
  static LDPK_FN Blocks after(Blocks x, int n) { return _mm256_add_epi64(x, _mm256_set_epi64x(0, n, 0, n)); }
  static LDPK_FN uint32_t sub_word(uint32_t w) { return aes_sub_word(w); }
};

}  // namespace

const AesUnit kVaes256 = aes_unit_of<Vaes256>("vaes256");

}  // namespace ldpk
