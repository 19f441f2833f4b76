// SPDX-License-Identifier: Apache-2.0
// Weights to the integers of ordinal CLDP and back, for one lane. docs/mechanisms/ordinal_cldp.md.
#pragma once

#include "../dtype.h"
#include "ordinal_cldp.h"

namespace ldpk {

// The draw that decides stochastic rounding; no attempt comes so far.
constexpr uint32_t kRoundingDraw = 0xffffffffu;

// Up to here an integer can be read off the low bits of a sum with 1.5 * 2^52, which every instruction set does in a
// register.
constexpr int64_t kSmallInteger = int64_t{1} << 51;

// One multiplication by the scale, kept to [-bound, bound]; a NaN is taken for 0.
template <bool small>
struct WeightGrid {
  double scale, top;  // the largest double that is at most the bound
  int64_t bound;

  explicit LDPK_FN WeightGrid(const OrdinalCldpLaw& law) : scale(law.scale), bound(law.bound) {
    const double d = static_cast<double>(bound);
    top = static_cast<int64_t>(d) <= bound ? d : bit_cast<double>(bit_cast<uint64_t>(d) - 1);
  }

  // The nearest integer, ties to even.
  LDPK_FN int64_t nearest(double x) const {
    const double z = inside(x);
    return ends(z, round(z));
  }

  // One of the two neighbours, the upper one with the probability of the fraction in units of 2^-32.
  LDPK_FN int64_t stochastic(double x, uint32_t draw) const {
    const double z = inside(x);
#if defined(__CUDA_ARCH__)
    const double floor = ::floor(z);
#else
    const double floor = __builtin_floor(z);
#endif
    const int64_t share = WeightGrid<true>::round((z - floor) * 0x1p32);
    return ends(z, round(floor) + (static_cast<int64_t>(draw) < share));
  }

  static LDPK_FN int64_t round(double z) {
    constexpr double shift = 0x1.8p52;
    if constexpr (small) return bit_cast<int64_t>(z + shift) - bit_cast<int64_t>(shift);
#if defined(__CUDA_ARCH__)
    return __double2ll_rn(z);
#else
    return static_cast<int64_t>(__builtin_llrint(z));
#endif
  }

 private:
  LDPK_FN double inside(double x) const {
    const double scaled = x * scale, z = scaled != scaled ? 0.0 : scaled;
    const double below = z > top ? top : z;
    return below < -top ? -top : below;
  }
  LDPK_FN int64_t ends(double z, int64_t k) const {
    const int64_t below = z >= top ? bound : k;
    return z <= -top ? -bound : below;
  }
};

}  // namespace ldpk
