// SPDX-License-Identifier: Apache-2.0
// The formats of weights: their bits, their numbers, and the one switch from a span's code to a format.
#pragma once

#include <type_traits>

#include "lanes.h"

namespace ldpk {

// The numbers are part of the Python interface (ldpkernels/common/dtypes.py).
enum class Dtype : int64_t { f32 = 0, f64 = 1, bf16 = 2, f16 = 3 };

// A span's dtype where its elements are int64; the others are those of Dtype.
constexpr int64_t kIntegers = 4;

// load<Lanes>(p): a register of numbers, fp64 for fp64, else fp32. number(bits): one of them.
template <Dtype dtype>
struct Element {
  using Float = std::conditional_t<dtype == Dtype::f64, double, float>;
  using Bits =
      std::conditional_t<dtype == Dtype::f64, uint64_t, std::conditional_t<dtype == Dtype::f32, uint32_t, uint16_t>>;
  template <class Lanes>
  static LDPK_FN auto load(const Bits* p) {
    if constexpr (dtype == Dtype::bf16) {
      return Lanes::load_bf16(p);
    } else if constexpr (dtype == Dtype::f16) {
      return Lanes::load_f16(p);
    } else {
      return Lanes::load(reinterpret_cast<const Float*>(p));
    }
  }
  static LDPK_FN Float number(Bits b) {
    if constexpr (sizeof(Bits) == sizeof(Float)) {
      return bit_cast<Float>(b);
    } else {
      return load<ScalarLanes>(&b);
    }
  }
};

template <Dtype dtype>
using BitsOf = typename Element<dtype>::Bits;
template <Dtype dtype>
using FloatOf = typename Element<dtype>::Float;

// x rounded to fp32 and from there to the 16-bit formats, each time to the nearest, ties to even. It is within the
// format: the host sees to it.
template <Dtype dtype>
LDPK_FN BitsOf<dtype> rounded_bits(double x) {
  if constexpr (dtype == Dtype::f64) {
    return bit_cast<uint64_t>(x);
  } else {
    const uint32_t b = bit_cast<uint32_t>(static_cast<float>(x));
    if constexpr (dtype == Dtype::f32) return b;
    if constexpr (dtype == Dtype::bf16) return static_cast<uint16_t>((b + 0x7fffu + ((b >> 16) & 1u)) >> 16);
    if constexpr (dtype == Dtype::f16) {
      const uint32_t magnitude = b & 0x7fffffffu;
      const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
      const uint32_t subnormal = bit_cast<uint32_t>(bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
      return static_cast<uint16_t>((magnitude < 0x38800000u ? subnormal : normal) | ((b >> 16) & 0x8000u));
    }
  }
}

// f(dtype), a constant, for the one of `dtypes` that the span has. The span is read anew for each: a GPU has it in its
// constant memory, and registers are dearer.
template <Dtype... dtypes, class F>
LDPK_FN void with_dtype_of(const Span& span, F f) {
  ((span.dtype == static_cast<int64_t>(dtypes) ? f(std::integral_constant<Dtype, dtypes>{}) : void()), ...);
}
template <class F>
LDPK_FN void with_dtype(const Span& span, F f) {
  with_dtype_of<Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f16>(span, f);
}

}  // namespace ldpk
