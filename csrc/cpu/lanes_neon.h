// SPDX-License-Identifier: Apache-2.0
// Four lanes: AArch64 NEON. csrc/lanes.h says what each operation means.
#pragma once

#include <arm_neon.h>

#include "../lanes.h"

namespace ldpk {

struct NeonLanes {
  static constexpr int count = 4;
  static constexpr int blocks = 2;
  using f32 = float32x4_t;
  using i32 = int32x4_t;
  using u32 = uint32x4_t;
  using u64 = uint64x2_t;
  struct f64 {
    float64x2_t lo, hi;
    friend LDPK_FN f64 operator-(f64 a, f64 b) { return {a.lo - b.lo, a.hi - b.hi}; }
    friend LDPK_FN f64 operator*(f64 a, f64 b) { return {a.lo * b.lo, a.hi * b.hi}; }
  };
  using Mask = uint32x4_t;  // 0 or all ones in each lane

  static LDPK_FN u64 multiply_low_words(u64 a, uint32_t m) { return vmull_u32(vmovn_u64(a), vdup_n_u32(m)); }
  static LDPK_FN u64 even_pairs(u64 a, u64 b) { return vzip1q_u64(a, b); }
  static LDPK_FN u64 odd_pairs(u64 a, u64 b) { return vzip2q_u64(a, b); }
  static LDPK_FN u64 join_words(u64 a, u64 b) { return vsliq_n_u64(a, b, 32); }

  static LDPK_FN f32 load(const float* p) { return vld1q_f32(p); }
  static LDPK_FN f64 load(const double* p) { return {vld1q_f64(p), vld1q_f64(p + 2)}; }
  static LDPK_FN f32 load_bf16(const uint16_t* p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
  static LDPK_FN f32 load_f16(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
  static LDPK_FN i32 load_draws(const uint16_t* p) { return vmovl_s16(vreinterpret_s16_u16(vld1_u16(p))); }

  static LDPK_FN f32 broadcast(f32, double v) { return vdupq_n_f32(static_cast<float>(v)); }
  static LDPK_FN f64 broadcast(f64, double v) { return {vdupq_n_f64(v), vdupq_n_f64(v)}; }
  static LDPK_FN f32 replace_nan(f32 x, double v) { return vbslq_f32(vceqq_f32(x, x), x, broadcast(x, v)); }
  static LDPK_FN f64 replace_nan(f64 x, double v) {
    const f64 c = broadcast(x, v);
    return {vbslq_f64(vceqq_f64(x.lo, x.lo), x.lo, c.lo), vbslq_f64(vceqq_f64(x.hi, x.hi), x.hi, c.hi)};
  }

  static LDPK_FN i32 round_within(f32 z, int32_t lo, int32_t hi) {
    const i32 k = vcvtnq_s32_f32(z);
    const i32 at_least = vbslq_s32(vcleq_f32(z, vdupq_n_f32(float_at_least(lo))), vdupq_n_s32(lo), k);
    return vbslq_s32(vcgeq_f32(z, vdupq_n_f32(float_at_most(hi))), vdupq_n_s32(hi), at_least);
  }
  static LDPK_FN i32 round_within(f64 z, int32_t lo, int32_t hi) {
    const float64x2_t l = vdupq_n_f64(lo), h = vdupq_n_f64(hi);
    const int64x2_t a = vcvtnq_s64_f64(vmaxq_f64(vminq_f64(z.lo, h), l));
    const int64x2_t b = vcvtnq_s64_f64(vmaxq_f64(vminq_f64(z.hi, h), l));
    return vcombine_s32(vmovn_s64(a), vmovn_s64(b));
  }

  static LDPK_FN i32 round_near(f32 z, int32_t lo, int32_t hi) {
    return vcvtnq_s32_f32(vmaxq_f32(vminq_f32(z, vdupq_n_f32(float_at_most(hi))), vdupq_n_f32(float_at_least(lo))));
  }
  static LDPK_FN i32 round_near(f64 z, int32_t lo, int32_t hi) { return round_within(z, lo, hi); }

  static LDPK_FN Mask less(i32 a, i32 b) { return vcltq_s32(a, b); }
  static LDPK_FN Mask equal(i32 a, i32 b) { return vceqq_s32(a, b); }
  static LDPK_FN Mask both(Mask a, Mask b) { return vandq_u32(a, b); }
  static LDPK_FN Mask either(Mask a, Mask b) { return vorrq_u32(a, b); }
  static LDPK_FN bool any(Mask m) { return vmaxvq_u32(m) != 0; }
  static LDPK_FN uint32_t bits(Mask m) {
    const uint32x4_t weight = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32(m, weight));
  }

  static LDPK_FN u32 broadcast_u32(uint32_t v) { return vdupq_n_u32(v); }
  template <int n>
  static LDPK_FN u32 rotate(u32 a) {
    if constexpr (n == 16) return vreinterpretq_u32_u16(vrev32q_u16(vreinterpretq_u16_u32(a)));
    return vsriq_n_u32(vshlq_n_u32(a, n), a, 32 - n);
  }
  static LDPK_FN void store_blocks(uint32_t* p, const u32 (&words)[16]) {
    for (int q = 0; q < 4; ++q) {
      const u32* w = words + 4 * q;
      const uint64x2_t a = vreinterpretq_u64_u32(vzip1q_u32(w[0], w[1]));
      const uint64x2_t b = vreinterpretq_u64_u32(vzip1q_u32(w[2], w[3]));
      const uint64x2_t c = vreinterpretq_u64_u32(vzip2q_u32(w[0], w[1]));
      const uint64x2_t d = vreinterpretq_u64_u32(vzip2q_u32(w[2], w[3]));
      vst1q_u32(p + 4 * q, vreinterpretq_u32_u64(vzip1q_u64(a, b)));
      vst1q_u32(p + 4 * q + 16, vreinterpretq_u32_u64(vzip2q_u64(a, b)));
      vst1q_u32(p + 4 * q + 32, vreinterpretq_u32_u64(vzip1q_u64(c, d)));
      vst1q_u32(p + 4 * q + 48, vreinterpretq_u32_u64(vzip2q_u64(c, d)));
    }
  }
  static LDPK_FN u32 as_unsigned(i32 a) { return vreinterpretq_u32_s32(a); }
  static LDPK_FN u32 load_draws(const uint16_t* high, const uint16_t* low) {
    return vsliq_n_u32(vmovl_u16(vld1_u16(low)), vmovl_u16(vld1_u16(high)), 16);
  }
  static LDPK_FN Mask less(u32 a, u32 b) { return vcltq_u32(a, b); }
  static LDPK_FN Mask equal(u32 a, u32 b) { return vceqq_u32(a, b); }
  static LDPK_FN u32 select(Mask m, u32 if_set, u32 if_not) { return vbslq_u32(m, if_set, if_not); }
  static LDPK_FN u32 smaller(u32 a, u32 b) { return vminq_u32(a, b); }
  static LDPK_FN u32 multiply_high(u32 a, u32 b) {
    const u64 low = vmull_u32(vget_low_u32(a), vget_low_u32(b)), high = vmull_high_u32(a, b);
    return vuzp2q_u32(vreinterpretq_u32_u64(low), vreinterpretq_u32_u64(high));
  }

  static LDPK_FN f32 affine(u32 a, double offset, double step) {
    return vaddq_f32(vdupq_n_f32(static_cast<float>(offset)),
                     vmulq_f32(vdupq_n_f32(static_cast<float>(step)), vcvtq_f32_u32(a)));
  }
  static LDPK_FN void store_affine(float* p, u32 a, double offset, double step) {
    vst1q_f32(p, affine(a, offset, step));
  }
  static LDPK_FN void store_affine(double* p, u32 a, double offset, double step) {
    const float64x2_t lo = vcvtq_f64_u64(vmovl_u32(vget_low_u32(a))), hi = vcvtq_f64_u64(vmovl_high_u32(a));
    vst1q_f64(p, vaddq_f64(vdupq_n_f64(offset), vmulq_f64(vdupq_n_f64(step), lo)));
    vst1q_f64(p + 2, vaddq_f64(vdupq_n_f64(offset), vmulq_f64(vdupq_n_f64(step), hi)));
  }
  static LDPK_FN void store_affine_bf16(uint16_t* p, u32 a, double offset, double step) {
    vst1_u16(p, vshrn_n_u32(vreinterpretq_u32_f32(affine(a, offset, step)), 16));
  }
  static LDPK_FN void store_affine_f16(uint16_t* p, u32 a, double offset, double step) {
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(affine(a, offset, step))));
  }
  static LDPK_FN void store_bytes(uint8_t* p, u32 a) {
    const uint16x4_t words = vmovn_u32(a);
    const uint32_t bytes = vget_lane_u32(vreinterpret_u32_u8(vmovn_u16(vcombine_u16(words, words))), 0);
    memcpy(p, &bytes, 4);
  }
  static LDPK_FN void store_integers(int64_t* p, u32 a) {
    vst1q_s64(p, vreinterpretq_s64_u64(vmovl_u32(vget_low_u32(a))));
    vst1q_s64(p + 2, vreinterpretq_s64_u64(vmovl_high_u32(a)));
  }

  static LDPK_FN void store_choice(uint32_t* p, Mask m, uint32_t lower, uint32_t upper) {
    vst1q_u32(p, vbslq_u32(m, vdupq_n_u32(upper), vdupq_n_u32(lower)));
  }
  static LDPK_FN void store_choice(uint16_t* p, Mask m, uint16_t lower, uint16_t upper) {
    vst1_u16(p, vbsl_u16(vmovn_u32(m), vdup_n_u16(upper), vdup_n_u16(lower)));
  }
  static LDPK_FN void store_choice(uint64_t* p, Mask m, uint64_t lower, uint64_t upper) {
    const int32x4_t s = vreinterpretq_s32_u32(m);
    const uint64x2_t l = vdupq_n_u64(lower), h = vdupq_n_u64(upper);
    vst1q_u64(p, vbslq_u64(vreinterpretq_u64_s64(vmovl_s32(vget_low_s32(s))), h, l));
    vst1q_u64(p + 2, vbslq_u64(vreinterpretq_u64_s64(vmovl_high_s32(s)), h, l));
  }
};

}  // namespace ldpk
