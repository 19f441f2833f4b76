// SPDX-License-Identifier: Apache-2.0
// csrc/cpu/detect.h, for tests/test_detect.py: given registers, and those of this machine. Bit 0: AVX2, 1: AVX-512, 2:
// SSE4.2.
#include "../../csrc/cpu/detect.h"

extern "C" int isas_of(uint32_t ecx_of_1, uint32_t ebx_of_7, uint64_t saved) {
  const ldpk::X86 machine{ecx_of_1, ebx_of_7, saved};
  return machine.avx2() + 2 * machine.avx512() + 4 * machine.sse42();
}

// Bit 0: AES at 128 bits, 1: at 256, 2: at 512.
extern "C" int aes_of(uint32_t ecx_of_1, uint32_t ebx_of_7, uint64_t saved, uint32_t ecx_of_7) {
  const ldpk::X86 machine{ecx_of_1, ebx_of_7, saved, ecx_of_7};
  return machine.aes() + 2 * machine.vaes256() + 4 * machine.vaes512();
}

extern "C" int isas_here() {
#if defined(__x86_64__)
  const ldpk::X86 machine = ldpk::this_x86();
  return isas_of(machine.ecx_of_1, machine.ebx_of_7, machine.saved);
#else
  return 0;
#endif
}
