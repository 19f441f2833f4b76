// SPDX-License-Identifier: Apache-2.0
// CRC-32C (Castagnoli; RFC 3720): the digest of reports on the wire. It is linear, so three stretches are summed at
// once, which hides the latency of the instruction, and joined by tables that move a sum past a stretch of zeros. Where
// registers of 64 bytes multiply polynomials, bytes are first folded: four registers stand for all that was read.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpu/detect.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#endif

namespace ldpk {

class Crc32c {
 public:
  static uint32_t of(const uint8_t* data, size_t n) {
#if defined(__x86_64__)
    static const bool folds = this_x86().wide_products();
    if (folds) return by_folding(data, n);
#endif
#if defined(__x86_64__) || defined(__ARM_FEATURE_CRC32)
    if (has_instruction()) return by_instruction(data, n);
#endif
    return by_table(data, n);
  }

#if defined(__x86_64__) || defined(__ARM_FEATURE_CRC32)
  static bool has_instruction() {
#if defined(__x86_64__)
    static const bool has = this_x86().sse42();
    return has;
#else
    return true;
#endif
  }
  static uint32_t by_instruction(const uint8_t* data, size_t n) { return ~summed(~0u, data, n); }
#endif

  // The same without the instruction, for other machines and for the tests.
  static uint32_t by_table(const uint8_t* data, size_t n) {
    static const auto table = bytes_table();
    uint32_t sum = ~0u;
    for (; n >= 8; data += 8, n -= 8) {
      const uint64_t word = load(data) ^ sum;
      sum = 0;
      for (int i = 0; i < 8; ++i) sum ^= table[7 - i][word >> 8 * i & 0xff];
    }
    for (; n; --n) sum = table[0][(sum ^ *data++) & 0xff] ^ sum >> 8;
    return ~sum;
  }

 private:
  static constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected: bit 31 is x^0
  using Rows = std::array<std::array<uint32_t, 256>, 4>;

  static uint64_t load(const uint8_t* p) {
    uint64_t word;
    memcpy(&word, p, 8);
    return word;
  }

  // Row i: what a byte does that i zero bytes follow.
  static std::array<std::array<uint32_t, 256>, 8> bytes_table() {
    std::array<std::array<uint32_t, 256>, 8> table;
    for (uint32_t b = 0; b < 256; ++b) {
      uint32_t sum = b;
      for (int i = 0; i < 8; ++i) sum = sum & 1 ? sum >> 1 ^ kPolynomial : sum >> 1;
      table[0][b] = sum;
    }
    for (int row = 1; row < 8; ++row) {
      for (int b = 0; b < 256; ++b) table[row][b] = table[0][table[row - 1][b] & 0xff] ^ table[row - 1][b] >> 8;
    }
    return table;
  }

#if defined(__x86_64__) || defined(__ARM_FEATURE_CRC32)
#if defined(__x86_64__)
#define LDPK_CRC __attribute__((target("sse4.2,crc32")))  // the first is GCC's name, the second Clang's
  LDPK_CRC static uint32_t step8(uint32_t sum, uint64_t word) {
    return static_cast<uint32_t>(_mm_crc32_u64(sum, word));
  }
  LDPK_CRC static uint32_t step1(uint32_t sum, uint8_t byte) { return _mm_crc32_u8(sum, byte); }
#else
#define LDPK_CRC
  static uint32_t step8(uint32_t sum, uint64_t word) { return __crc32cd(sum, word); }
  static uint32_t step1(uint32_t sum, uint8_t byte) { return __crc32cb(sum, byte); }
#endif

  // A product of polynomials modulo the sum's.
  static uint32_t product(uint32_t a, uint32_t b) {
    uint32_t found = 0;
    for (uint32_t bit = 1u << 31; bit; bit >>= 1) {
      if (a & bit) found ^= b;
      b = b & 1 ? b >> 1 ^ kPolynomial : b >> 1;
    }
    return found;
  }

  // What `bytes` zero bytes, a power of two, do to each byte of a sum.
  static Rows zeros_table(size_t bytes) {
    uint32_t power = 1u << 23;  // x^8, squared until it is x^(8 bytes)
    for (size_t n = 1; n < bytes; n *= 2) power = product(power, power);
    Rows rows;
    for (int row = 0; row < 4; ++row) {
      for (uint32_t b = 0; b < 256; ++b) rows[row][b] = product(power, b << 8 * row);
    }
    return rows;
  }

  static uint32_t moved(const Rows& rows, uint32_t sum) {
    return rows[0][sum & 0xff] ^ rows[1][sum >> 8 & 0xff] ^ rows[2][sum >> 16 & 0xff] ^ rows[3][sum >> 24];
  }

  template <size_t stretch>
  LDPK_CRC static uint32_t by_threes(uint32_t sum, const uint8_t*& data, size_t& n) {
    static const Rows rows = zeros_table(stretch);
    for (; n >= 3 * stretch; data += 3 * stretch, n -= 3 * stretch) {
      uint32_t second = 0, third = 0;
      for (size_t i = 0; i < stretch; i += 8) {
        sum = step8(sum, load(data + i));
        second = step8(second, load(data + stretch + i));
        third = step8(third, load(data + 2 * stretch + i));
      }
      sum = moved(rows, moved(rows, sum) ^ second) ^ third;
    }
    return sum;
  }

  LDPK_CRC static uint32_t summed(uint32_t sum, const uint8_t* data, size_t n) {
    sum = by_threes<4096>(sum, data, n);
    sum = by_threes<256>(sum, data, n);
    for (; n >= 8; data += 8, n -= 8) sum = step8(sum, load(data));
    for (; n; --n) sum = step1(sum, *data++);
    return sum;
  }
#undef LDPK_CRC
#endif

#if defined(__x86_64__)
  // x^n, times the x that a product of reflected halves lacks, as a factor of such a half.
  static int64_t factor(int n) {
    uint32_t power = 1u << 31;
    for (int i = 1; i < n; ++i) power = product(power, 1u << 30);
    return static_cast<int64_t>(uint64_t{power} << 32);
  }

  // What `a` stands for, 256 bytes further on.
  __attribute__((target("avx512f,vpclmulqdq"))) static __m512i folded(__m512i a, __m512i factors, const uint8_t* next) {
    const __m512i low = _mm512_clmulepi64_epi128(a, factors, 0x00), high = _mm512_clmulepi64_epi128(a, factors, 0x11);
    return _mm512_ternarylogic_epi64(low, high, _mm512_loadu_si512(next), 0x96);
  }

  __attribute__((target("avx512f,vpclmulqdq"))) static uint32_t by_folding(const uint8_t* data, size_t n) {
    constexpr size_t step = 256;
    if (n < 4 * step) return by_instruction(data, n);
    static const int64_t past_half = factor(8 * step + 64), past = factor(8 * step);
    const __m512i factors = _mm512_set4_epi64(past, past_half, past, past_half);
    __m512i a = _mm512_xor_si512(_mm512_loadu_si512(data), _mm512_zextsi128_si512(_mm_cvtsi32_si128(-1)));
    __m512i b = _mm512_loadu_si512(data + 64), c = _mm512_loadu_si512(data + 128), d = _mm512_loadu_si512(data + 192);
    for (data += step, n -= step; n >= step; data += step, n -= step) {
      a = folded(a, factors, data);
      b = folded(b, factors, data + 64);
      c = folded(c, factors, data + 128);
      d = folded(d, factors, data + 192);
    }
    alignas(64) uint8_t rest[step];
    _mm512_store_si512(rest, a);
    _mm512_store_si512(rest + 64, b);
    _mm512_store_si512(rest + 128, c);
    _mm512_store_si512(rest + 192, d);
    return ~summed(summed(0, rest, step), data, n);
  }
#endif
};

}  // namespace ldpk
