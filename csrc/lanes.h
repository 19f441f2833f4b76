// SPDX-License-Identifier: Apache-2.0
// The vocabulary in which mechanisms are written, for one lane. This is the scalar CPU backend, the CUDA backend and
// the definition of every operation; csrc/cpu/lanes_*.h say the same for a register of lanes.
#pragma once

#include <cmath>
#include <cstring>

#include "common.h"

#if defined(__CUDACC__)
#include <cuda_fp16.h>
#endif

namespace ldpk {

template <class To, class From>
LDPK_FN To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

// The largest float that is at most k, and the smallest that is at least k, for |k| < 2^31.
// Arithmetic alone, without a choice: so compilers take it out of a loop over elements.
LDPK_FN float float_at_most(int32_t k) {
  const float f = static_cast<float>(k);
  const auto above = static_cast<int32_t>((k - static_cast<int64_t>(f)) >> 63);  // -1 where the nearest is above k
  return bit_cast<float>(bit_cast<int32_t>(f) + above * (k >> 31 | 1));
}
LDPK_FN float float_at_least(int32_t k) { return -float_at_most(-k); }

// Whether an integer that is kept to the floats between lo and hi has the upper half of one that is kept to lo and hi.
// Multiples of 2^16 are floats, so none lies above the largest float that is at most hi and up to hi. The smallest
// float that is at least lo may be one, and lie above lo.
LDPK_FN bool halves_agree(int32_t lo) { return static_cast<int32_t>(float_at_least(lo)) >> 16 == lo >> 16; }

struct ScalarLanes {
  static constexpr int count = 1;   // elements of a register
  static constexpr int blocks = 1;  // Philox blocks of a register: 64-bit lanes
  using f32 = float;
  using f64 = double;
  using i32 = int32_t;
  using u32 = uint32_t;
  using u64 = uint64_t;
  using Mask = bool;

  static LDPK_FN u64 multiply_low_words(u64 a, uint32_t m) {
#if defined(__CUDA_ARCH__)
    u64 product;  // nvcc makes three instructions of the C++ below
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(static_cast<uint32_t>(a)), "r"(m));
    return product;
#else
    return uint64_t{static_cast<uint32_t>(a)} * m;
#endif
  }

  static LDPK_FN f32 load(const float* p) { return *p; }
  static LDPK_FN f64 load(const double* p) { return *p; }
  static LDPK_FN f32 load_bf16(const uint16_t* p) { return bit_cast<float>(uint32_t{*p} << 16); }
  static LDPK_FN f32 load_f16(const uint16_t* p) {
#if defined(__CUDA_ARCH__)
    return __half2float(__ushort_as_half(*p));
#else
    const uint32_t magnitude = *p & 0x7fffu;
    const float value = magnitude >= 0x7c00u ? bit_cast<float>((magnitude << 13) | 0x7f800000u)
                                             : bit_cast<float>(magnitude << 13) * 0x1p112f;
    return *p & 0x8000u ? -value : value;
#endif
  }
  static LDPK_FN i32 load_draws(const uint16_t* p) { return static_cast<int16_t>(*p); }

  static LDPK_FN f32 broadcast(f32, double v) { return static_cast<float>(v); }
  static LDPK_FN f64 broadcast(f64, double v) { return v; }
  static LDPK_FN f32 replace_nan(f32 x, double v) { return x != x ? static_cast<float>(v) : x; }
  static LDPK_FN f64 replace_nan(f64 x, double v) { return x != x ? v : x; }

  // The nearest integer, ties to even, kept to [lo, hi] with both ends attained. z is not NaN. In fp32 there may be one
  // number from lo to hi, or none; z is then at both ends at once, and hi is asked for first.
  static LDPK_FN i32 round_within(f32 z, int32_t lo, int32_t hi) {
#if defined(__CUDA_ARCH__)
    const i32 k = __float2int_rn(z);  // saturates, so that it may come first and no branch is needed
    const i32 at_least = z <= float_at_least(lo) ? lo : k;
    return z >= float_at_most(hi) ? hi : at_least;
#else
    if (z >= float_at_most(hi)) return hi;
    if (z <= float_at_least(lo)) return lo;
    return static_cast<int32_t>(rintf(z));
#endif
  }
  static LDPK_FN i32 round_within(f64 z, int32_t lo, int32_t hi) {
    return static_cast<int32_t>(rint(z >= hi ? hi : z <= lo ? lo : z));
  }
  // An integer with the same upper half if halves_agree(lo). Lanes need fewer instructions for it.
  template <class Float>
  static LDPK_FN i32 round_near(Float z, int32_t lo, int32_t hi) {
    return round_within(z, lo, hi);
  }

  static LDPK_FN Mask less(i32 a, i32 b) { return a < b; }
  static LDPK_FN Mask equal(i32 a, i32 b) { return a == b; }
  static LDPK_FN Mask both(Mask a, Mask b) { return a && b; }
  static LDPK_FN Mask either(Mask a, Mask b) { return a || b; }
  static LDPK_FN bool any(Mask m) { return m; }
  static LDPK_FN uint32_t bits(Mask m) { return m; }

  // Unsigned lanes have +, -, ^, << and >>, and wrap.
  static LDPK_FN u32 broadcast_u32(uint32_t v) { return v; }
  template <int n>
  static LDPK_FN u32 rotate(u32 a) {
    return a << n | a >> (32 - n);
  }
  // Words of as many ChaCha20 blocks as there are lanes, block after block.
  static LDPK_FN void store_blocks(uint32_t* p, const u32 (&words)[16]) { memcpy(p, words, sizeof(words)); }
  static LDPK_FN u32 as_unsigned(i32 a) { return static_cast<u32>(a); }
  // 32-bit draws from their halves.
  static LDPK_FN u32 load_draws(const uint16_t* high, const uint16_t* low) { return uint32_t{*high} << 16 | *low; }
  static LDPK_FN Mask less(u32 a, u32 b) { return a < b; }
  static LDPK_FN Mask equal(u32 a, u32 b) { return a == b; }
  static LDPK_FN u32 select(Mask m, u32 if_set, u32 if_not) { return m ? if_set : if_not; }
  static LDPK_FN u32 smaller(u32 a, u32 b) { return a < b ? a : b; }
  static LDPK_FN u32 multiply_high(u32 a, u32 b) { return static_cast<u32>(uint64_t{a} * b >> 32); }

  // offset + step * a, in the format of an output. The caller's numbers are such that nothing is rounded.
  static LDPK_FN void store_affine(float* p, u32 a, double offset, double step) {
    *p = static_cast<float>(offset) + static_cast<float>(step) * static_cast<float>(a);
  }
  static LDPK_FN void store_affine(double* p, u32 a, double offset, double step) {
    *p = offset + step * static_cast<double>(a);
  }
  static LDPK_FN void store_affine_bf16(uint16_t* p, u32 a, double offset, double step) {
    float value;
    store_affine(&value, a, offset, step);
    *p = static_cast<uint16_t>(bit_cast<uint32_t>(value) >> 16);
  }
  static LDPK_FN void store_affine_f16(uint16_t* p, u32 a, double offset, double step) {
    float value;
    store_affine(&value, a, offset, step);
    const uint32_t bits = bit_cast<uint32_t>(value);
    const uint32_t magnitude = bit_cast<uint32_t>(bit_cast<float>(bits & 0x7fffffffu) * 0x1p-112f) >> 13;
    *p = static_cast<uint16_t>((bits >> 16 & 0x8000u) | magnitude);
  }
  // Numbers below 256.
  static LDPK_FN void store_bytes(uint8_t* p, u32 a) { *p = static_cast<uint8_t>(a); }
  static LDPK_FN void store_integers(int64_t* p, u32 a) { *p = a; }

  // Chooses between two bit patterns and stores.
  template <class T>
  static LDPK_FN void store_choice(T* p, Mask m, T lower, T upper) {
    *p = m ? upper : lower;
  }
};

// Upper halves of registers and draws of 16 bits, as many as lanes compare at once.
template <class Lanes>
struct Halves {
  static constexpr int count = Lanes::count;
  static LDPK_FN auto upper(const typename Lanes::i32 (&k)[1]) { return k[0] >> 16; }
  static LDPK_FN auto load(const uint16_t* draws) { return Lanes::load_draws(draws); }
  static LDPK_FN auto joined(const typename Lanes::Mask (&m)[1]) { return m[0]; }
};

}  // namespace ldpk
