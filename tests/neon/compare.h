// SPDX-License-Identifier: Apache-2.0
// What the comparisons of NEON with the scalar kernels share, and those that have files of their own.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "cpu/dispatch.h"

namespace ldpk::neon {

using Bytes = std::vector<uint8_t>;

constexpr int kGuard = 64;  // bytes before an output and behind it
inline int64_t comparisons = 0;

void check_two_point(const Key& key);
void check_ordinal_cldp(const Key& key, const char* path);  // of what ordinal_cldp_laws.py writes

// splitmix64 (Steele, Lea, Flood 2014): weights of every bit pattern.
inline uint64_t random_bits() {
  static uint64_t state = 1;
  uint64_t z = state += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

inline void expect_equal(const Bytes& scalar, const Bytes& neon, const std::string& what) {
  ++comparisons;
  for (size_t i = 0; i < scalar.size(); ++i) {
    if (scalar[i] == neon[i]) continue;
    std::printf("FAILED %s: byte %zu is %02x, scalar has %02x\n", what.c_str(), i, neon[i], scalar[i]);
    std::exit(1);
  }
}

inline int size_of(Dtype dtype) { return dtype == Dtype::f32 ? 4 : dtype == Dtype::f64 ? 8 : 2; }

// Half of the weights are any bit pattern; the others lie about the range, where thresholds are decided.
inline Bytes weights(Dtype dtype, int64_t n) {
  Bytes out(n * size_of(dtype));
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t any = random_bits();
    const double near = static_cast<double>(static_cast<int64_t>(random_bits())) * 0x1p-63;
    const bool ranged = any >> 63;
    if (dtype == Dtype::f64) {
      const uint64_t bits = ranged ? bit_cast<uint64_t>(near) : any;
      std::memcpy(&out[8 * i], &bits, 8);
    } else if (dtype == Dtype::f32) {
      const uint32_t bits = ranged ? bit_cast<uint32_t>(static_cast<float>(near)) : static_cast<uint32_t>(any);
      std::memcpy(&out[4 * i], &bits, 4);
    } else {
      const uint16_t bits = dtype == Dtype::bf16 && ranged
                                ? static_cast<uint16_t>(bit_cast<uint32_t>(static_cast<float>(near)) >> 16)
                                : static_cast<uint16_t>(any);
      std::memcpy(&out[2 * i], &bits, 2);
    }
  }
  return out;
}

// The kernel of a mechanism and one of its outputs.
inline Kernels::RunAction kernel_of(const Kernels& kernels, std::string_view mechanism, Output output) {
  Kernels::RunAction found = nullptr;
  size_t number = 0;
  Registry::each_action([&](auto action) {
    using Action = decltype(action);
    if (Action::Entry::name == mechanism && Action::output == output) found = kernels.actions[number];
    ++number;
  });
  return found;
}

}  // namespace ldpk::neon
