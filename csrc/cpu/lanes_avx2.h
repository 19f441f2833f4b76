// SPDX-License-Identifier: Apache-2.0
// Eight lanes: AVX2 and F16C. csrc/lanes.h says what each operation means.
#pragma once

#include <immintrin.h>

#include "../lanes.h"

namespace ldpk {

struct Avx2Lanes {
  static constexpr int count = 8;
  static constexpr int blocks = 4;
  typedef float f32 __attribute__((vector_size(32)));
  typedef int32_t i32 __attribute__((vector_size(32)));
  typedef uint32_t u32 __attribute__((vector_size(32)));
  typedef uint64_t u64 __attribute__((vector_size(32)));
  typedef double half64 __attribute__((vector_size(32)));
  struct f64 {
    half64 lo, hi;
    friend LDPK_FN f64 operator-(f64 a, f64 b) { return {a.lo - b.lo, a.hi - b.hi}; }
    friend LDPK_FN f64 operator*(f64 a, f64 b) { return {a.lo * b.lo, a.hi * b.hi}; }
  };
  using Mask = i32;  // 0 or -1 in each lane

  static LDPK_FN u64 multiply_low_words(u64 a, uint32_t m) {
    return (u64)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(m));
  }
  // [a0 b0 a2 b2 ...] and [a1 b1 a3 b3 ...]
  static LDPK_FN u64 even_pairs(u64 a, u64 b) { return (u64)_mm256_unpacklo_epi64((__m256i)a, (__m256i)b); }
  static LDPK_FN u64 odd_pairs(u64 a, u64 b) { return (u64)_mm256_unpackhi_epi64((__m256i)a, (__m256i)b); }
  // Each 64-bit lane: the low word of a, then the low word of b.
  static LDPK_FN u64 join_words(u64 a, u64 b) { return (u64)_mm256_blend_epi32((__m256i)a, (__m256i)(b << 32), 0xaa); }

  static LDPK_FN void digits64(const uint8_t* const* planes, int members, int64_t byte, uint8_t* out) {
    const __m256i order = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
    for (int half = 0; half < 2; ++half) {
      __m256i digits = _mm256_setzero_si256();
      for (int p = 0; p < members; ++p) {
        int32_t bits;
        memcpy(&bits, planes[p] + byte + 4 * half, 4);
        const __m256i own = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(bits), order), bit);
        const __m256i power = _mm256_set1_epi8(static_cast<char>(1 << p));
        digits = _mm256_or_si256(digits, _mm256_and_si256(_mm256_cmpeq_epi8(own, bit), power));
      }
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 32 * half), digits);
    }
  }

  static LDPK_FN f32 load(const float* p) { return (f32)_mm256_loadu_ps(p); }
  static LDPK_FN f64 load(const double* p) { return {(half64)_mm256_loadu_pd(p), (half64)_mm256_loadu_pd(p + 4)}; }
  static LDPK_FN f32 load_bf16(const uint16_t* p) {
    return (f32)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16);
  }
  static LDPK_FN f32 load_f16(const uint16_t* p) { return (f32)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
  static LDPK_FN i32 load_draws(const uint16_t* p) {
    return (i32)_mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i*)p));
  }

  static LDPK_FN f32 broadcast(f32, double v) { return (f32)_mm256_set1_ps(static_cast<float>(v)); }
  static LDPK_FN f64 broadcast(f64, double v) { return {(half64)_mm256_set1_pd(v), (half64)_mm256_set1_pd(v)}; }
  static LDPK_FN f32 replace_nan(f32 x, double v) { return x != x ? broadcast(x, v) : x; }
  static LDPK_FN f64 replace_nan(f64 x, double v) {
    const f64 c = broadcast(x, v);
    return {x.lo != x.lo ? c.lo : x.lo, x.hi != x.hi ? c.hi : x.hi};
  }

  static LDPK_FN i32 round_within(f32 z, int32_t lo, int32_t hi) {
    const i32 k = (i32)_mm256_cvtps_epi32((__m256)z);
    const i32 at_least = z <= float_at_least(lo) ? (i32)_mm256_set1_epi32(lo) : k;
    return z >= float_at_most(hi) ? (i32)_mm256_set1_epi32(hi) : at_least;
  }
  static LDPK_FN i32 round_within(f64 z, int32_t lo, int32_t hi) {
    const __m256d l = _mm256_set1_pd(lo), h = _mm256_set1_pd(hi);
    const __m128i a = _mm256_cvtpd_epi32(_mm256_max_pd(_mm256_min_pd((__m256d)z.lo, h), l));
    const __m128i b = _mm256_cvtpd_epi32(_mm256_max_pd(_mm256_min_pd((__m256d)z.hi, h), l));
    return (i32)_mm256_set_m128i(b, a);
  }

  static LDPK_FN i32 round_near(f32 z, int32_t lo, int32_t hi) {
    const __m256 at_most = _mm256_min_ps((__m256)z, _mm256_set1_ps(float_at_most(hi)));
    return (i32)_mm256_cvtps_epi32(_mm256_max_ps(at_most, _mm256_set1_ps(float_at_least(lo))));
  }
  static LDPK_FN i32 round_near(f64 z, int32_t lo, int32_t hi) { return round_within(z, lo, hi); }

  static LDPK_FN Mask less(i32 a, i32 b) { return a < b; }
  static LDPK_FN Mask equal(i32 a, i32 b) { return a == b; }
  static LDPK_FN Mask both(Mask a, Mask b) { return a & b; }
  static LDPK_FN Mask either(Mask a, Mask b) { return a | b; }
  static LDPK_FN bool any(Mask m) { return !_mm256_testz_si256((__m256i)m, (__m256i)m); }
  static LDPK_FN uint32_t bits(Mask m) { return _mm256_movemask_ps((__m256)m); }

  static LDPK_FN u32 broadcast_u32(uint32_t v) { return (u32)_mm256_set1_epi32(v); }
  template <int n>
  static LDPK_FN u32 rotate(u32 a) {
    if constexpr (n == 16) return bytes(a, _mm_setr_epi8(2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
    if constexpr (n == 8) return bytes(a, _mm_setr_epi8(3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10, 15, 12, 13, 14));
    return a << n | a >> (32 - n);
  }
  static LDPK_FN u32 bytes(u32 a, __m128i order) {
    return (u32)_mm256_shuffle_epi8((__m256i)a, _mm256_broadcastsi128_si256(order));
  }
  // Four words of each block come together within 128 bits, then the halves of blocks.
  static LDPK_FN void store_blocks(uint32_t* p, const u32 (&words)[16]) {
    for (int half = 0; half < 2; ++half) {
      __m256i fours[2][4];  // of the first or the last four words of a half, of blocks i and i + 4
      for (int q = 0; q < 2; ++q) {
        const u32* w = words + 8 * half + 4 * q;
        const __m256i a = _mm256_unpacklo_epi32((__m256i)w[0], (__m256i)w[1]);
        const __m256i b = _mm256_unpacklo_epi32((__m256i)w[2], (__m256i)w[3]);
        const __m256i c = _mm256_unpackhi_epi32((__m256i)w[0], (__m256i)w[1]);
        const __m256i d = _mm256_unpackhi_epi32((__m256i)w[2], (__m256i)w[3]);
        fours[q][0] = _mm256_unpacklo_epi64(a, b);
        fours[q][1] = _mm256_unpackhi_epi64(a, b);
        fours[q][2] = _mm256_unpacklo_epi64(c, d);
        fours[q][3] = _mm256_unpackhi_epi64(c, d);
      }
      for (int i = 0; i < 4; ++i) {
        const __m256i low = _mm256_permute2x128_si256(fours[0][i], fours[1][i], 0x20);
        const __m256i high = _mm256_permute2x128_si256(fours[0][i], fours[1][i], 0x31);
        _mm256_storeu_si256((__m256i*)(p + 16 * i + 8 * half), low);
        _mm256_storeu_si256((__m256i*)(p + 16 * (i + 4) + 8 * half), high);
      }
    }
  }
  static LDPK_FN u32 as_unsigned(i32 a) { return (u32)a; }
  static LDPK_FN u32 load_draws(const uint16_t* high, const uint16_t* low) {
    const __m128i h = _mm_loadu_si128((const __m128i*)high), l = _mm_loadu_si128((const __m128i*)low);
    return (u32)_mm256_set_m128i(_mm_unpackhi_epi16(l, h), _mm_unpacklo_epi16(l, h));
  }
  static LDPK_FN Mask less(u32 a, u32 b) { return a < b; }
  static LDPK_FN Mask equal(u32 a, u32 b) { return a == b; }
  static LDPK_FN u32 select(Mask m, u32 if_set, u32 if_not) { return m ? if_set : if_not; }
  static LDPK_FN u32 smaller(u32 a, u32 b) { return (u32)_mm256_min_epu32((__m256i)a, (__m256i)b); }
  static LDPK_FN u32 multiply_high(u32 a, u32 b) {
    const __m256i even = _mm256_mul_epu32((__m256i)a, (__m256i)b);
    const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64((__m256i)a, 32), _mm256_srli_epi64((__m256i)b, 32));
    return (u32)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
  }

  static LDPK_FN f32 affine(u32 a, double offset, double step) {
    return broadcast(f32{}, offset) + broadcast(f32{}, step) * (f32)_mm256_cvtepi32_ps((__m256i)a);
  }
  static LDPK_FN void store_affine(float* p, u32 a, double offset, double step) {
    _mm256_storeu_ps(p, (__m256)affine(a, offset, step));
  }
  static LDPK_FN void store_affine(double* p, u32 a, double offset, double step) {
    const half64 o = (half64)_mm256_set1_pd(offset), s = (half64)_mm256_set1_pd(step);
    const half64 lo = o + s * (half64)_mm256_cvtepi32_pd(_mm256_castsi256_si128((__m256i)a));
    const half64 hi = o + s * (half64)_mm256_cvtepi32_pd(_mm256_extracti128_si256((__m256i)a, 1));
    _mm256_storeu_pd(p, (__m256d)lo);
    _mm256_storeu_pd(p + 4, (__m256d)hi);
  }
  static LDPK_FN void store_affine_bf16(uint16_t* p, u32 a, double offset, double step) {
    const __m256i bits = _mm256_srli_epi32((__m256i)affine(a, offset, step), 16);
    const __m128i narrow = _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
    _mm_storeu_si128((__m128i*)p, narrow);
  }
  static LDPK_FN void store_affine_f16(uint16_t* p, u32 a, double offset, double step) {
    _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph((__m256)affine(a, offset, step), _MM_FROUND_TO_NEAREST_INT));
  }
  static LDPK_FN void store_bytes(uint8_t* p, u32 a) {
    const __m256i v = (__m256i)a;
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    _mm_storel_epi64((__m128i*)p, _mm_packus_epi16(words, words));
  }
  static LDPK_FN void store_integers(int64_t* p, u32 a) {
    _mm256_storeu_si256((__m256i*)p, _mm256_cvtepu32_epi64(_mm256_castsi256_si128((__m256i)a)));
    _mm256_storeu_si256((__m256i*)(p + 4), _mm256_cvtepu32_epi64(_mm256_extracti128_si256((__m256i)a, 1)));
  }

  static LDPK_FN void store_choice(uint32_t* p, Mask m, uint32_t lower, uint32_t upper) {
    const u32 chosen = m ? (u32)_mm256_set1_epi32(upper) : (u32)_mm256_set1_epi32(lower);
    _mm256_storeu_si256((__m256i*)p, (__m256i)chosen);
  }
  static LDPK_FN void store_choice(uint16_t* p, Mask m, uint16_t lower, uint16_t upper) {
    const __m128i narrow = _mm_packs_epi32(_mm256_castsi256_si128((__m256i)m), _mm256_extracti128_si256((__m256i)m, 1));
    _mm_storeu_si128((__m128i*)p, _mm_blendv_epi8(_mm_set1_epi16(lower), _mm_set1_epi16(upper), narrow));
  }
  static LDPK_FN void store_choice(uint64_t* p, Mask m, uint64_t lower, uint64_t upper) {
    const __m256i l = _mm256_set1_epi64x(lower), h = _mm256_set1_epi64x(upper);
    const __m256i m0 = _mm256_cvtepi32_epi64(_mm256_castsi256_si128((__m256i)m));
    const __m256i m1 = _mm256_cvtepi32_epi64(_mm256_extracti128_si256((__m256i)m, 1));
    _mm256_storeu_si256((__m256i*)p, _mm256_blendv_epi8(l, h, m0));
    _mm256_storeu_si256((__m256i*)(p + 4), _mm256_blendv_epi8(l, h, m1));
  }
};

}  // namespace ldpk
