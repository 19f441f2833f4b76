// SPDX-License-Identifier: Apache-2.0
// The noise of clipped sums: a normal pair from four words, and the discrete Gaussian from integers alone.
// docs/mechanisms/clipped_noise.md has the laws; ldpkernels/reference/clipped_noise.py is the twin.
//
// The normal pair uses fp64 additions, multiplications, divisions and square roots in one fixed order, with nothing
// fused and nothing from a mathematical library: IEEE 754 rounds each alike, so every backend has the same bits.
#pragma once

#include <cmath>

#include "../lanes.h"

namespace ldpk {

struct ClippedNoise {
  double stddev;     // of the normal noise; 0 for none
  double divisor;    // of the noised sum
  double unit;       // the grid's spacing, a power of two; 0 for normal noise
  int64_t grid_std;  // of the discrete noise, in units; 0 for none
};

// The factor of a row: 1 within its bound, 0 for a norm that is not finite. The margin covers the rounding of the norm
// and of the factor, so that the exact norm of the scaled row is at most the bound.
LDPK_FN double with_margin(double norm) { return norm * (1.0 + 0x1p-32); }
LDPK_FN bool is_within(double norm, double bound) { return with_margin(norm) <= bound; }
LDPK_FN double row_scale(double norm, double bound) {
  const double above = with_margin(norm);
  const double scale = bound / (is_within(norm, bound) ? bound : above);
  return norm < static_cast<double>(INFINITY) ? scale : 0.0;
}

// The scales of rows: numbers[row * stride], or if there is a bound, what norms there make of it.
struct RowScales {
  const double* numbers;
  int64_t stride;
  double bound;  // 0 for none

  LDPK_FN double operator()(int64_t row) const {
    const double number = numbers[row * stride];
    return bound > 0 ? row_scale(number, bound) : number;
  }
};

// The largest number of the type that is at most x >= 0: scales and bounds so rounded keep a row within its bound.
LDPK_FN float at_most(float, double x) {
  const float f = static_cast<float>(x);
  return f > x ? bit_cast<float>(bit_cast<uint32_t>(f) - 1) : f;
}
LDPK_FN double at_most(double, double x) { return x; }

// A single number kept to [-bound, bound]; 0 if it is not finite.
template <class Float>
LDPK_FN Float clamped(Float x, Float bound) {
  const Float above = x > -bound ? x : -bound, kept = above < bound ? above : bound;
  return fabs(x) < static_cast<Float>(INFINITY) ? kept : Float{0};
}

// ln u for a normal number u in (0, 1] (FreeBSD's e_log.c, which errs by less than an ulp).
LDPK_FN double natural_log(double u) {
  constexpr uint64_t half_root = 0x3fe6a09e667f3bcdull;  // the mantissa is in [sqrt(1/2), sqrt(2))
  const uint64_t bits = bit_cast<uint64_t>(u) + (0x3ff0000000000000ull - half_root);
  const double k = bit_cast<double>((bits >> 52) | 0x4330000000000000ull) - (0x1p52 + 1023.0);
  const double f = bit_cast<double>((bits & 0x000fffffffffffffull) + half_root) - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s, w = z * z;
  const double even = w * (0x1.999999997fa04p-2 + w * (0x1.c71c51d8e78afp-3 + w * 0x1.39a09d078c69fp-3));
  const double odd =
      z * (0x1.5555555555593p-1 + w * (0x1.2492494229359p-2 + w * (0x1.7466496cb03dep-3 + w * 0x1.2f112df3e5244p-3)));
  const double r = even + odd;
  const double square = 0.5 * f * f;
  return k * 0x1.62e42feep-1 - ((square - (s * (square + r) + k * 0x1.a39ef35793c76p-33)) - f);
}

// Sine and cosine for |x| <= pi/4 (FreeBSD's k_sin.c and k_cos.c).
LDPK_FN void sine_cosine(double x, double& sine, double& cosine) {
  const double z = x * x;
  const double rs = 0x1.111111110f8a6p-7 +
                    z * (-0x1.a01a019c161d5p-13 +
                         z * (0x1.71de357b1fe7dp-19 + z * (-0x1.ae5e68a2b9cebp-26 + z * 0x1.5d93a5acfd57cp-33)));
  sine = x + (z * x) * (-0x1.5555555555549p-3 + z * rs);
  const double rc =
      z * (0x1.555555555554cp-5 +
           z * (-0x1.6c16c16c15177p-10 +
                z * (0x1.a01a019cb159p-16 +
                     z * (-0x1.27e4f809c52adp-22 + z * (0x1.1ee9ebdb4b1c4p-29 + z * -0x1.8fae9be8838d4p-37)))));
  const double half = 0.5 * z;
  const double w = 1.0 - half;
  cosine = w + (((1.0 - w) - half) + z * rc);
}

LDPK_FN double exact(uint32_t word) { return bit_cast<double>(uint64_t{word} | 0x4330000000000000ull) - 0x1p52; }

// Box and Muller's pair of standard normals. The radius has 64 bits and reaches sqrt(2 ln 2^65) = 9.49; the angle has
// 2 bits of quadrant and 62 of fraction. Each is rounded to fp64 once.
LDPK_FN void normal_pair(const uint32_t* words, double& first, double& second) {
  const double u = (exact(words[1]) * 0x1p32 + (exact(words[0]) + 0.5)) * 0x1p-64;
  const double radius = sqrt(-2.0 * natural_log(u));
  const double turn = ((exact(words[3] & 0x3fffffffu) - 0x1p29) * 0x1p32 + (exact(words[2]) + 0.5)) * 0x1p-62;
  double sine, cosine;
  sine_cosine(turn * 0x1.921fb54442d18p+0, sine, cosine);
  const uint64_t quadrant = words[3] >> 30;
  const uint64_t swap = uint64_t{0} - (quadrant & 1);
  const uint64_t s = bit_cast<uint64_t>(sine), c = bit_cast<uint64_t>(cosine);
  const uint64_t x = ((s & swap) | (c & ~swap)) ^ (((quadrant + 1) & 2) << 62);
  const uint64_t y = ((c & swap) | (s & ~swap)) ^ ((quadrant & 2) << 62);
  first = radius * bit_cast<double>(x);
  second = radius * bit_cast<double>(y);
}

// The 32-bit words of one element: its block of keystream 0, then of keystream 1, and so on; block(stream, words) has
// them, and the first `left` may lie ready at `at`. The type of `block` keeps instruction sets apart.
template <class Cipher, class Block>
struct ElementWords {
  Block block;
  const uint32_t* at = nullptr;
  int left = 0;
  uint32_t stream = 0;  // of the next block
  uint32_t words[Cipher::block_words];

  LDPK_FN explicit ElementWords(Block block) : block(block) {}
  LDPK_FN ElementWords(Block block, const uint32_t* ready, int count)
      : block(block), at(ready), left(count), stream(count / Cipher::block_words) {}

  LDPK_FN uint32_t next() {
    if (left == 0) refill();
    --left;
    return *at++;
  }
  // Uniform on 0, ..., m - 1, for 1 <= m <= 2^31: the low bits of a word, drawn anew while they are m or more.
  LDPK_FN uint32_t below(uint32_t m) {
    if (m == 1) return 0;
    const uint32_t mask = 0xffffffffu >> leading_zeros(m - 1);
    uint32_t v;
    do v = next() & mask;
    while (v >= m);
    return v;
  }

 private:
  // Out of line: a dozen places draw.
  LDPK_CALL void refill() {
    block(stream++, words);
    at = words;
    left = Cipher::block_words;
  }
  static LDPK_FN int leading_zeros(uint32_t x) {
#if defined(__CUDA_ARCH__)
    return __clz(static_cast<int>(x));
#else
    return __builtin_clz(x);
#endif
  }
};

// True with probability exp(-p), where event() is true with probability p <= 1 (Canonne, Kamath and Steinke 2020,
// algorithm 1): the number of successes with probabilities p/1, p/2, p/3, ... is even.
template <class Words, class Event>
LDPK_FN bool bernoulli_exp(Words& words, Event event) {
  uint32_t k = 1;
  while (event() && words.below(k) == 0) ++k;
  return k % 2 == 1;
}

// An integer y with probability proportional to exp(-y^2 / (2 s^2)), 1 <= s <= 2^31 (the same, algorithms 2 and 3, with
// t = s): a discrete Laplace number u + s v of scale s, kept with probability exp(-(u + s v - s)^2 / (2 s^2)). A
// product of probabilities is a conjunction of events, so that no integer has more than 32 bits.
template <class Words>
LDPK_FN int64_t discrete_gaussian(Words& words, uint32_t s) {
  for (;;) {
    const uint32_t u = words.below(s);
    const auto fraction = [&] { return words.below(s) < u; };
    if (!bernoulli_exp(words, fraction)) continue;
    int64_t v = 0;
    while (bernoulli_exp(words, [] { return true; })) ++v;
    const bool negative = words.below(2) == 1;
    if (negative && u == 0 && v == 0) continue;
    bool kept = true;
    if (v == 0) {
      const uint32_t w = s - u;
      kept = bernoulli_exp(words, [&] { return words.below(s) < w && words.below(s) < w && words.below(2) == 0; });
    } else {  // (u + s a)^2 / (2 s^2) = a^2 / 2 + a u / s + u^2 / (2 s^2)
      const int64_t a = v - 1;
      for (int64_t i = 0; kept && i < a * a; ++i) kept = bernoulli_exp(words, [&] { return words.below(2) == 0; });
      for (int64_t i = 0; kept && i < a; ++i) kept = bernoulli_exp(words, fraction);
      kept = kept && bernoulli_exp(words, [&] { return fraction() && fraction() && words.below(2) == 0; });
    }
    if (!kept) continue;
    const int64_t y = u + int64_t{s} * v;
    return negative ? -y : y;
  }
}

}  // namespace ldpk
