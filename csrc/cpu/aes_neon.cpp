// SPDX-License-Identifier: Apache-2.0
// AArch64's AESE, which adds a key ahead of the S-box.
#include <arm_neon.h>

#include "aes_rounds.h"

namespace ldpk {
namespace {

struct AesNeon {
  using Blocks = uint8x16_t;
  static constexpr int blocks = 1;

  static LDPK_FN Blocks load(const uint32_t* p) { return vreinterpretq_u8_u32(vld1q_u32(p)); }
  static LDPK_FN void store(uint32_t* p, Blocks x) { vst1q_u32(p, vreinterpretq_u32_u8(x)); }
  static LDPK_FN Blocks spread(const uint32_t* p) { return load(p); }
  static LDPK_FN Blocks begun(Blocks x, Blocks) { return x; }
  static LDPK_FN Blocks round(Blocks x, Blocks before, Blocks) { return vaesmcq_u8(vaeseq_u8(x, before)); }
  static LDPK_FN Blocks last(Blocks x, Blocks before, Blocks k) { return veorq_u8(vaeseq_u8(x, before), k); }
  static LDPK_FN Blocks counters(uint64_t first, uint32_t stream) {
    const uint64_t words[2] = {first, stream};
    return vreinterpretq_u8_u64(vld1q_u64(words));
  }
  static LDPK_FN Blocks after(Blocks x, int n) {
    const uint64_t words[2] = {static_cast<uint64_t>(n), 0};
    return vreinterpretq_u8_u64(vaddq_u64(vreinterpretq_u64_u8(x), vld1q_u64(words)));
  }
  static LDPK_FN uint32_t sub_word(uint32_t w) {  // four equal columns, so that it does not matter how rows move
    const uint8x16_t column = vreinterpretq_u8_u32(vdupq_n_u32(w));
    return vgetq_lane_u32(vreinterpretq_u32_u8(vaeseq_u8(column, vdupq_n_u8(0))), 0);
  }
};

}  // namespace

const AesUnit kAesNeon = aes_unit_of<AesNeon>("aese");

}  // namespace ldpk
