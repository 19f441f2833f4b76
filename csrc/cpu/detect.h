// SPDX-License-Identifier: Apache-2.0
// Which instruction sets an x86-64 machine has, asked of the processor: what compilers offer for the question is not
// the same everywhere, and answers "no" where the C library that they bring has no table of processors.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace ldpk {

// What CPUID and XGETBV say: registers of leaves 1 and 7, and the registers that the system saves.
struct X86 {
  uint32_t ecx_of_1 = 0, ebx_of_7 = 0;
  uint64_t saved = 0;
  uint32_t ecx_of_7 = 0;

  bool sse42() const { return ecx_of_1 >> 20 & 1; }
  // What isa_avx2.cpp and isa_avx512.cpp are compiled for. A processor may have registers that the system does not
  // save.
  bool avx2() const {
    constexpr uint64_t sse_and_avx = 0x6;
    return bits(ecx_of_1, {osxsave, avx, f16c}) && bits(ebx_of_7, {5}) && (saved & sse_and_avx) == sse_and_avx;
  }
  bool fused() const { return avx2() && bits(ecx_of_1, {fma}); }  // products and sums in one: training/isa_avx2.cpp
  bool avx512() const {
    constexpr uint64_t masks_and_avx512 = 0xe0;
    return fused() && bits(ebx_of_7, {f, dq, bw, vl}) && (saved & masks_and_avx512) == masks_and_avx512;
  }
  // What cpu/aes_*.cpp are compiled for.
  bool aes() const { return avx2() && bits(ecx_of_1, {25}); }
  bool vaes256() const { return aes() && bits(ecx_of_7, {9}); }
  bool vaes512() const { return vaes256() && avx512(); }
  // Products of polynomials, four in a register.
  bool wide_products() const { return avx512() && bits(ecx_of_7, {10}); }

 private:
  static constexpr int fma = 12, osxsave = 27, avx = 28, f16c = 29;  // of leaf 1
  static constexpr int f = 16, dq = 17, bw = 30, vl = 31;            // AVX-512's, of leaf 7

  template <int count>
  static bool bits(uint32_t word, const int (&wanted)[count]) {
    for (int bit : wanted) {
      if (!(word >> bit & 1)) return false;
    }
    return true;
  }
};

#if defined(__x86_64__)
inline X86 this_x86() {
  X86 found;
  uint32_t a, b, d;
  if (!__get_cpuid(1, &a, &b, &found.ecx_of_1, &d)) return found;
  if (found.ecx_of_1 >> 27 & 1) {  // else XGETBV is no instruction
    uint32_t low, high;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    found.saved = uint64_t{high} << 32 | low;
  }
  if (!__get_cpuid_count(7, 0, &a, &found.ebx_of_7, &found.ecx_of_7, &d)) found.ebx_of_7 = found.ecx_of_7 = 0;
  return found;
}
#endif

}  // namespace ldpk
