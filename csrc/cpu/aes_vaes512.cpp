// SPDX-License-Identifier: Apache-2.0
// VAES with AVX-512: four blocks at a time.
#include "aes_ni.h"

namespace ldpk {
namespace {

struct Vaes512 {
  using Blocks = __m512i;
  static constexpr int blocks = 4;

  static LDPK_FN Blocks load(const uint32_t* p) { return _mm512_loadu_si512(p); }
  static LDPK_FN void store(uint32_t* p, Blocks x) { _mm512_storeu_si512(p, x); }
  static LDPK_FN Blocks spread(const uint32_t* p) { return _mm512_broadcast_i32x4(AesNi::load(p)); }
  static LDPK_FN Blocks begun(Blocks x, Blocks k) { return _mm512_xor_si512(x, k); }
  static LDPK_FN Blocks round(Blocks x, Blocks, Blocks k) { return _mm512_aesenc_epi128(x, k); }
  static LDPK_FN Blocks last(Blocks x, Blocks, Blocks k) { return _mm512_aesenclast_epi128(x, k); }
  static LDPK_FN Blocks counters(uint64_t first, uint32_t stream) {
    return _mm512_set_epi64(stream, first + 3, stream, first + 2, stream, first + 1, stream, first);
  }
  static LDPK_FN Blocks after(Blocks x, int n) { return _mm512_add_epi64(x, _mm512_set_epi64(0, n, 0, n, 0, n, 0, n)); }
  static LDPK_FN uint32_t sub_word(uint32_t w) { return aes_sub_word(w); }
};

}  // namespace

const AesUnit kVaes512 = aes_unit_of<Vaes512>("vaes512");

}  // namespace ldpk
