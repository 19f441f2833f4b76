// SPDX-License-Identifier: Apache-2.0
// Sixteen lanes: AVX-512 F, BW, DQ and VL. csrc/lanes.h says what each operation means.
#pragma once

#include <immintrin.h>

#include "../lanes.h"

namespace ldpk {

struct Avx512Lanes {
  static constexpr int count = 16;
  static constexpr int blocks = 8;
  typedef float f32 __attribute__((vector_size(64)));
  typedef int32_t i32 __attribute__((vector_size(64)));
  typedef uint32_t u32 __attribute__((vector_size(64)));
  typedef uint64_t u64 __attribute__((vector_size(64)));
  typedef double half64 __attribute__((vector_size(64)));
  struct f64 {
    half64 lo, hi;
    friend LDPK_FN f64 operator-(f64 a, f64 b) { return {a.lo - b.lo, a.hi - b.hi}; }
    friend LDPK_FN f64 operator*(f64 a, f64 b) { return {a.lo * b.lo, a.hi * b.hi}; }
  };
  using Mask = __mmask16;

  static LDPK_FN u64 multiply_low_words(u64 a, uint32_t m) {
    return (u64)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi64(m));
  }
  static LDPK_FN u64 even_pairs(u64 a, u64 b) { return (u64)_mm512_unpacklo_epi64((__m512i)a, (__m512i)b); }
  static LDPK_FN u64 odd_pairs(u64 a, u64 b) { return (u64)_mm512_unpackhi_epi64((__m512i)a, (__m512i)b); }
  static LDPK_FN u64 join_words(u64 a, u64 b) {
    return (u64)_mm512_mask_blend_epi32(0xaaaa, (__m512i)a, (__m512i)(b << 32));
  }

  // 64 numbers in registers; each lane chooses one by its lowest six bits. Other lanes have no such thing.
  struct Table {
    __m512i low, high;
    explicit LDPK_FN Table(const uint16_t* p) : low(_mm512_loadu_si512(p)), high(_mm512_loadu_si512(p + 32)) {}
    LDPK_FN u64 operator[](u64 places) const {
      return (u64)_mm512_maskz_permutex2var_epi16(0x11111111, low, (__m512i)places, high);
    }
  };

  static LDPK_FN void digits64(const uint8_t* const* planes, int members, int64_t byte, uint8_t* out) {
    __m512i digits = _mm512_setzero_si512();
    for (int p = 0; p < members; ++p) {
      uint64_t bits;
      memcpy(&bits, planes[p] + byte, 8);
      digits = _mm512_mask_add_epi8(digits, bits, digits, _mm512_set1_epi8(static_cast<char>(1 << p)));
    }
    _mm512_storeu_si512(out, digits);
  }

  static LDPK_FN f32 load(const float* p) { return (f32)_mm512_loadu_ps(p); }
  static LDPK_FN f64 load(const double* p) { return {(half64)_mm512_loadu_pd(p), (half64)_mm512_loadu_pd(p + 8)}; }
  static LDPK_FN f32 load_bf16(const uint16_t* p) {
    return (f32)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16);
  }
  static LDPK_FN f32 load_f16(const uint16_t* p) { return (f32)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
  static LDPK_FN i32 load_draws(const uint16_t* p) {
    return (i32)_mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i*)p));
  }

  static LDPK_FN f32 broadcast(f32, double v) { return (f32)_mm512_set1_ps(static_cast<float>(v)); }
  static LDPK_FN f64 broadcast(f64, double v) { return {(half64)_mm512_set1_pd(v), (half64)_mm512_set1_pd(v)}; }
  // By kind of number, four bits each, from a quiet and a signalling NaN on: 0 takes v, 1 takes x. A comparison and a
  // choice by its mask take twice as long.
  static constexpr int kNanFirst = 0x11111100;
  static LDPK_FN f32 replace_nan(f32 x, double v) {
    return (f32)_mm512_fixupimm_ps((__m512)broadcast(x, v), (__m512)x, _mm512_set1_epi32(kNanFirst), 0);
  }
  static LDPK_FN half64 replace_nan_half(half64 x, half64 c) {
    return (half64)_mm512_fixupimm_pd((__m512d)c, (__m512d)x, _mm512_set1_epi64(kNanFirst), 0);
  }
  static LDPK_FN f64 replace_nan(f64 x, double v) {
    const f64 c = broadcast(x, v);
    return {replace_nan_half(x.lo, c.lo), replace_nan_half(x.hi, c.hi)};
  }

  static LDPK_FN i32 round_within(f32 z, int32_t lo, int32_t hi) {
    const __m512 v = (__m512)z;
    const __mmask16 above = _mm512_cmp_ps_mask(v, _mm512_set1_ps(float_at_most(hi)), _CMP_GE_OQ);
    const __mmask16 below = _mm512_cmp_ps_mask(v, _mm512_set1_ps(float_at_least(lo)), _CMP_LE_OQ);
    const __m512i at_least = _mm512_mask_mov_epi32(_mm512_cvtps_epi32(v), below, _mm512_set1_epi32(lo));
    return (i32)_mm512_mask_mov_epi32(at_least, above, _mm512_set1_epi32(hi));
  }
  static LDPK_FN i32 round_within(f64 z, int32_t lo, int32_t hi) {
    const __m512d l = _mm512_set1_pd(lo), h = _mm512_set1_pd(hi);
    const __m256i a = _mm512_cvtpd_epi32(_mm512_max_pd(_mm512_min_pd((__m512d)z.lo, h), l));
    const __m256i b = _mm512_cvtpd_epi32(_mm512_max_pd(_mm512_min_pd((__m512d)z.hi, h), l));
    return (i32)_mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
  }

  static LDPK_FN i32 round_near(f32 z, int32_t lo, int32_t hi) {
    const __m512 at_most = _mm512_min_ps((__m512)z, _mm512_set1_ps(float_at_most(hi)));
    return (i32)_mm512_cvtps_epi32(_mm512_max_ps(at_most, _mm512_set1_ps(float_at_least(lo))));
  }
  static LDPK_FN i32 round_near(f64 z, int32_t lo, int32_t hi) { return round_within(z, lo, hi); }

  static LDPK_FN __mmask32 less(__m512i a, __m512i b) { return _mm512_cmplt_epi16_mask(a, b); }
  static LDPK_FN __mmask32 equal(__m512i a, __m512i b) { return _mm512_cmpeq_epi16_mask(a, b); }
  static LDPK_FN Mask less(i32 a, i32 b) { return _mm512_cmplt_epi32_mask((__m512i)a, (__m512i)b); }
  static LDPK_FN Mask equal(i32 a, i32 b) { return _mm512_cmpeq_epi32_mask((__m512i)a, (__m512i)b); }
  static LDPK_FN Mask both(Mask a, Mask b) { return a & b; }
  static LDPK_FN Mask either(Mask a, Mask b) { return a | b; }
  static LDPK_FN bool any(__mmask32 m) { return m != 0; }
  static LDPK_FN uint32_t bits(__mmask32 m) { return m; }

  static LDPK_FN u32 broadcast_u32(uint32_t v) { return (u32)_mm512_set1_epi32(v); }
  template <int n>
  static LDPK_FN u32 rotate(u32 a) {
    return (u32)_mm512_rol_epi32((__m512i)a, n);
  }
  // Four words of each block come together within 128 bits, then the quarters of blocks.
  static LDPK_FN void store_blocks(uint32_t* p, const u32 (&words)[16]) {
    __m512i fours[4][4];  // of words 4 q to 4 q + 3, of blocks i, i + 4, i + 8 and i + 12
    for (int q = 0; q < 4; ++q) {
      const u32* w = words + 4 * q;
      const __m512i a = _mm512_unpacklo_epi32((__m512i)w[0], (__m512i)w[1]);
      const __m512i b = _mm512_unpacklo_epi32((__m512i)w[2], (__m512i)w[3]);
      const __m512i c = _mm512_unpackhi_epi32((__m512i)w[0], (__m512i)w[1]);
      const __m512i d = _mm512_unpackhi_epi32((__m512i)w[2], (__m512i)w[3]);
      fours[0][q] = _mm512_unpacklo_epi64(a, b);
      fours[1][q] = _mm512_unpackhi_epi64(a, b);
      fours[2][q] = _mm512_unpacklo_epi64(c, d);
      fours[3][q] = _mm512_unpackhi_epi64(c, d);
    }
    for (int i = 0; i < 4; ++i) {
      const __m512i a = _mm512_shuffle_i32x4(fours[i][0], fours[i][1], 0x44);
      const __m512i b = _mm512_shuffle_i32x4(fours[i][2], fours[i][3], 0x44);
      const __m512i c = _mm512_shuffle_i32x4(fours[i][0], fours[i][1], 0xee);
      const __m512i d = _mm512_shuffle_i32x4(fours[i][2], fours[i][3], 0xee);
      _mm512_storeu_si512(p + 16 * i, _mm512_shuffle_i32x4(a, b, 0x88));
      _mm512_storeu_si512(p + 16 * (i + 4), _mm512_shuffle_i32x4(a, b, 0xdd));
      _mm512_storeu_si512(p + 16 * (i + 8), _mm512_shuffle_i32x4(c, d, 0x88));
      _mm512_storeu_si512(p + 16 * (i + 12), _mm512_shuffle_i32x4(c, d, 0xdd));
    }
  }
  static LDPK_FN u32 as_unsigned(i32 a) { return (u32)a; }
  static LDPK_FN u32 load_draws(const uint16_t* high, const uint16_t* low) {
    const __m512i h = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i*)high));
    const __m512i l = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i*)low));
    // Lane i: word i of l, then word i of h, which is word 32 + i of the pair.
    const __m512i first = _mm512_set1_epi32(32 << 16);
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i order = _mm512_add_epi32(first, _mm512_or_si512(lane, _mm512_slli_epi32(lane, 16)));
    return (u32)_mm512_permutex2var_epi16(l, order, h);
  }
  static LDPK_FN Mask less(u32 a, u32 b) { return _mm512_cmplt_epu32_mask((__m512i)a, (__m512i)b); }
  static LDPK_FN Mask equal(u32 a, u32 b) { return _mm512_cmpeq_epi32_mask((__m512i)a, (__m512i)b); }
  static LDPK_FN u32 select(Mask m, u32 if_set, u32 if_not) {
    return (u32)_mm512_mask_blend_epi32(m, (__m512i)if_not, (__m512i)if_set);
  }
  static LDPK_FN u32 smaller(u32 a, u32 b) { return (u32)_mm512_min_epu32((__m512i)a, (__m512i)b); }
  static LDPK_FN u32 multiply_high(u32 a, u32 b) {
    const __m512i even = _mm512_mul_epu32((__m512i)a, (__m512i)b);
    const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64((__m512i)a, 32), _mm512_srli_epi64((__m512i)b, 32));
    return (u32)_mm512_mask_shuffle_epi32(odd, 0x5555, even, _MM_PERM_DDBB);
  }

  static LDPK_FN f32 affine(u32 a, double offset, double step) {
    return broadcast(f32{}, offset) + broadcast(f32{}, step) * (f32)_mm512_cvtepi32_ps((__m512i)a);
  }
  static LDPK_FN void store_affine(float* p, u32 a, double offset, double step) {
    _mm512_storeu_ps(p, (__m512)affine(a, offset, step));
  }
  static LDPK_FN void store_affine(double* p, u32 a, double offset, double step) {
    const half64 o = (half64)_mm512_set1_pd(offset), s = (half64)_mm512_set1_pd(step);
    const half64 lo = o + s * (half64)_mm512_cvtepi32_pd(_mm512_castsi512_si256((__m512i)a));
    const half64 hi = o + s * (half64)_mm512_cvtepi32_pd(_mm512_extracti64x4_epi64((__m512i)a, 1));
    _mm512_storeu_pd(p, (__m512d)lo);
    _mm512_storeu_pd(p + 8, (__m512d)hi);
  }
  static LDPK_FN void store_affine_bf16(uint16_t* p, u32 a, double offset, double step) {
    const __m512i bits = _mm512_srli_epi32((__m512i)affine(a, offset, step), 16);
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(bits));
  }
  static LDPK_FN void store_affine_f16(uint16_t* p, u32 a, double offset, double step) {
    const __m256i halves = _mm512_cvtps_ph((__m512)affine(a, offset, step), _MM_FROUND_TO_NEAREST_INT);
    _mm256_storeu_si256((__m256i*)p, halves);
  }
  // Never above the numbers.
  static LDPK_FN void store_below(float* p, half64 a) {
    _mm256_storeu_ps(p, _mm512_cvt_roundpd_ps((__m512d)a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC));
  }
  static LDPK_FN void store_bytes(uint8_t* p, u32 a) {
    _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8((__m512i)a));
  }
  static LDPK_FN void store_integers(int64_t* p, u32 a) {
    _mm512_storeu_si512(p, _mm512_cvtepu32_epi64(_mm512_castsi512_si256((__m512i)a)));
    _mm512_storeu_si512(p + 8, _mm512_cvtepu32_epi64(_mm512_extracti64x4_epi64((__m512i)a, 1)));
  }

  static LDPK_FN void store_choice(uint32_t* p, __mmask32 m, uint32_t lower, uint32_t upper) {
    const __m512i l = _mm512_set1_epi32(lower), h = _mm512_set1_epi32(upper);
    for (int i = 0; i < 2; ++i) _mm512_storeu_si512(p + 16 * i, _mm512_mask_blend_epi32(m >> 16 * i, l, h));
  }
  static LDPK_FN void store_choice(uint16_t* p, __mmask32 m, uint16_t lower, uint16_t upper) {
    _mm512_storeu_si512(p, _mm512_mask_blend_epi16(m, _mm512_set1_epi16(lower), _mm512_set1_epi16(upper)));
  }
  static LDPK_FN void store_choice(uint64_t* p, __mmask32 m, uint64_t lower, uint64_t upper) {
    const __m512i l = _mm512_set1_epi64(lower), h = _mm512_set1_epi64(upper);
    for (int i = 0; i < 4; ++i) _mm512_storeu_si512(p + 8 * i, _mm512_mask_blend_epi64(m >> 8 * i, l, h));
  }
};

template <>
struct Halves<Avx512Lanes> {
  static constexpr int count = 32;
  static LDPK_FN __m512i upper(const Avx512Lanes::i32 (&k)[2]) {
    typedef uint16_t Words __attribute__((vector_size(64)));
    Words odd;
    for (int i = 0; i < count; ++i) odd[i] = 2 * i + 1;
    return _mm512_permutex2var_epi16((__m512i)k[0], (__m512i)odd, (__m512i)k[1]);
  }
  static LDPK_FN __m512i load(const uint16_t* draws) { return _mm512_loadu_si512(draws); }
  static LDPK_FN __mmask32 joined(const __mmask16 (&m)[2]) { return m[0] | static_cast<__mmask32>(m[1]) << 16; }
};

}  // namespace ldpk
