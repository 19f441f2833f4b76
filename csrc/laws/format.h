// SPDX-License-Identifier: Apache-2.0
// The floating-point formats and exact rounding into them: what ldpkernels/dtypes.py has, in Wide integers.
#pragma once

#include <cmath>
#include <cstdint>

#include "../dtype.h"
#include "wide.h"

namespace ldpk {

constexpr int64_t kDraws = int64_t{1} << 32;  // a report is decided by one of so many

struct Format {
  int precision;     // significant bits
  int min_exponent;  // of the smallest normal number
  int max_exponent;  // of the largest finite number

  double largest_power() const { return std::ldexp(1.0, max_exponent); }
  // The power of two by which this format's numbers around n / d * 2^exponent are apart.
  int64_t spacing_at(const Wide& n, const Wide& d, int64_t exponent) const {
    if (!n) return min_exponent - precision + 1;
    const Wide size = n.abs();
    int64_t top = size.bit_length() - d.bit_length();
    if ((size << std::max<int64_t>(-top, 0)) < (d << std::max<int64_t>(top, 0))) --top;
    return std::max<int64_t>(top + exponent, min_exponent) - precision + 1;
  }
  // Whether n / d * 2^exponent is above the largest finite number.
  bool exceeded(const Wide& n, const Wide& d, int64_t exponent) const {
    if (n.bit_length() - d.bit_length() + exponent < max_exponent) return false;
    return -floor_at(-n, d, exponent - (max_exponent - precision + 1)) >= (Wide(1) << precision);
  }
  bool holds_at(const Wide& n, int64_t exponent) const {
    if (!n) return true;
    const int zeros = n.trailing_zeros();
    return n.bit_length() - zeros <= precision && min_exponent - precision < zeros + exponent &&
           n.bit_length() + exponent - 1 <= max_exponent;
  }
};

constexpr Format kFormats[] = {{24, -126, 127}, {53, -1022, 1023}, {8, -126, 127}, {11, -14, 15}};  // by Dtype

inline const Format& format_of(Dtype dtype) { return kFormats[static_cast<int64_t>(dtype)]; }
inline Dtype compute_dtype(Dtype dtype) { return dtype == Dtype::f64 ? Dtype::f64 : Dtype::f32; }

// n * 2^exponent, which is a number of fp64.
inline double scaled(const Wide& n, int64_t exponent) {
  if (!format_of(Dtype::f64).holds_at(n, exponent)) throw Declined{};
  if (!n) return 0.0;
  const int zeros = n.trailing_zeros();
  const int64_t digits = floor_divided(n, Wide(1) << zeros).first.to_int64();
  return std::ldexp(static_cast<double>(digits), static_cast<int>(zeros + exponent));
}
// The smallest number of a format that is at least n / d * 2^exponent.
inline double ceil_at(const Format& format, const Wide& n, const Wide& d, int64_t exponent) {
  const int64_t spacing = format.spacing_at(n, d, exponent);
  return scaled(-floor_at(-n, d, exponent - spacing), spacing);
}
// n / d * 2^exponent to the nearest number of fp64, ties to even.
inline double nearest_double(const Wide& n, const Wide& d, int64_t exponent) {
  const int64_t spacing = format_of(Dtype::f64).spacing_at(n, d, exponent), up = exponent - spacing;
  return scaled(up >= 0 ? nearest(n << up, d) : nearest(n, d << -up), spacing);
}

// A number of `dtype` as its bits.
inline uint64_t bits_of(Dtype dtype, double x) {
  switch (dtype) {
    case Dtype::f32:
      return rounded_bits<Dtype::f32>(x);
    case Dtype::f64:
      return rounded_bits<Dtype::f64>(x);
    case Dtype::bf16:
      return rounded_bits<Dtype::bf16>(x);
    default:
      return rounded_bits<Dtype::f16>(x);
  }
}

// A range as a kernel executes it: rounded to the format in which it compares, and as integers in units of 2^unit.
struct ExecutedRange {
  double c, r;
  Wide center, radius;
  int64_t unit;  // at most 0
};

constexpr double kSmallestRadius = 0x1p-96;  // keeps every slope finite in fp32

inline ExecutedRange executed_range(double c, double r, Dtype compute) {
  if (!std::isfinite(c) || !std::isfinite(r) || r < 0) throw Declined{};
  const auto rounded = [&](double x) { return compute == Dtype::f64 ? x : static_cast<double>(static_cast<float>(x)); };
  ExecutedRange out{rounded(c) + 0.0, rounded(r), {}, {}, 0};  // no negative zero
  if (!std::isfinite(out.c) || !std::isfinite(out.r)) throw Declined{};
  const auto set = [&] {
    int up_c = 0, up_r = 0;
    const auto digits = [](double x, int& exponent) {  // an odd integer, or 0
      const auto n = static_cast<int64_t>(std::ldexp(std::frexp(x, &exponent), 53));
      const int zeros = n == 0 ? 0 : std::countr_zero(static_cast<uint64_t>(n));
      exponent = n == 0 ? 0 : exponent - 53 + zeros;
      return n / (int64_t{1} << zeros);
    };
    const int64_t n = digits(out.c, up_c), m = digits(out.r, up_r);
    out.unit = std::min({0, up_c, up_r});
    out.center = Wide(n) << (up_c - out.unit), out.radius = Wide(m) << (up_r - out.unit);
  };
  set();
  if (format_of(compute).exceeded(out.center.abs() + out.radius, 1, out.unit)) throw Declined{};
  if (r > 0 && out.r < kSmallestRadius) {
    out.r = kSmallestRadius;
    set();
  }
  return out;
}

}  // namespace ldpk
