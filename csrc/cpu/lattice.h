// SPDX-License-Identifier: Apache-2.0
// Whole vectors on the grid: weights to integers with the exact sum of their squares, and integers with noise to what
// is released. docs/mechanisms/vector_gaussian.md.
#pragma once

#include "dispatch.h"
#include "skeleton.h"
#include "sums.h"

namespace ldpk {

constexpr int64_t kLatticeTile = 512;

// Elements [begin, end) of span.data, scaled, to integers in span.out: cut towards zero, or rounded at random by the
// 32-bit draws of keystream `stream`. A number that is no integer of 32 bits becomes one that is too large.
template <class Lanes, Dtype dtype, class Draw>
LDPK_FN void quantise_tile(const BitsOf<dtype>* in, double scale, int64_t n, Draw draw, int32_t* __restrict out) {
  FloatOf<dtype> buffer[kPiece];
  const FloatOf<dtype>* x = widened<Lanes, dtype>(in, n, buffer);
  for (int64_t i = 0; i < n; ++i) {
    const double z = draw(static_cast<double>(x[i]) * scale, i);
    const double above = z > -2147483647.0 ? z : -2147483647.0;  // a NaN too
    out[i] = static_cast<int32_t>(above < 2147483647.0 ? above : 2147483647.0);
  }
}

LDPK_FN double round_down(double z) {  // to an integer, for |z| <= 2^31
  const double near = (z + 0x1.8p52) - 0x1.8p52;
  return near > z ? near - 1.0 : near;
}

template <class Lanes, class Cipher>
Squares quantise_range(const Span& span, double scale, const Key* key, uint32_t stream, int64_t begin, int64_t end) {
  Squares squares;
  int32_t* out = reinterpret_cast<int32_t*>(span.out);
  alignas(64) uint32_t buffer[kLatticeTile + 2 * kStepBytes / 4];
  for (int64_t tile = begin, n; tile < end; tile += n) {
    n = end - tile < kLatticeTile ? end - tile : kLatticeTile;
    const uint32_t* draws = nullptr;
    if (key) draws = draws_of<Lanes, uint32_t>(Cipher{}, *key, stream, span.first + tile, n, buffer);
    with_dtype(span, [&](auto dtype) {
      const auto* in = reinterpret_cast<const BitsOf<dtype()>*>(span.data) + tile;
      if (key) {
        const auto dither = [&](double z, int64_t i) { return round_down(z + exact(draws[i]) * 0x1p-32); };
        quantise_tile<Lanes, dtype()>(in, scale, n, dither, out + tile);
      } else {
        quantise_tile<Lanes, dtype()>(in, scale, n, [](double z, int64_t) { return z; }, out + tile);
      }
    });
    for (int64_t i = 0; i < n; ++i) {
      const uint64_t square = static_cast<uint64_t>(int64_t{out[tile + i]} * out[tile + i]);
      squares.low += square & 0xffffffffu;
      squares.high += square >> 32;
    }
  }
  return squares;
}

template <class Lanes>
Squares quantise(const Span& span, double scale, const Key* key, uint32_t stream, int64_t begin, int64_t end) {
  if (!key) return quantise_range<Lanes, FourWords>(span, scale, key, stream, begin, end);
  return with_cipher(
      *key, [&](auto cipher) { return quantise_range<Lanes, decltype(cipher)>(span, scale, key, stream, begin, end); });
}

// Out of line: one draw in a hundred comes here.
template <class Lanes, class Cipher>
LDPK_CALL int32_t slow_noise(const NoiseTable& table, const Key& key, uint64_t element, uint64_t draw) {
  const auto block = [&](uint32_t s, uint32_t(&out)[Cipher::block_words]) {
    lone_block<Lanes>(Cipher{}, key, s, element, out);
  };
  ElementWords<Cipher, decltype(block)> words(block);
  words.stream = 1;
  return lattice_noise(table, draw, words);
}

template <class Lanes, class Cipher>
void noise_range(const NoiseTable& table, const Key& key, const Span& span, const LatticeOut& to, int64_t begin,
                 int64_t end) {
  const int32_t* in = reinterpret_cast<const int32_t*>(span.data);
  alignas(64) uint32_t buffer[2 * kLatticeTile + 2 * kStepBytes / 4];
  int32_t noise[kLatticeTile], decided[kLatticeTile];
  for (int64_t tile = begin, n; tile < end; tile += n) {
    n = end - tile < kLatticeTile ? end - tile : kLatticeTile;
    const uint64_t element = static_cast<uint64_t>(span.first + tile);
    const uint64_t* draws = draws_of<Lanes, uint64_t>(Cipher{}, key, 0, element, n, buffer);
    const uint32_t* halves = reinterpret_cast<const uint32_t*>(draws);  // the lower first
    for (int64_t i = 0; i < n; ++i) decided[i] = quick_noise(table, halves[2 * i + 1], halves[2 * i], noise[i]);
    for (int64_t i = 0; i < n; ++i) {
      if (!decided[i]) noise[i] = slow_noise<Lanes, Cipher>(table, key, element + i, draws[i]);
    }
    if (to.mask) {
      uint32_t* out = reinterpret_cast<uint32_t*>(span.out) + tile;
      for (int64_t i = 0; i < n; ++i)
        out[i] = (static_cast<uint32_t>(in[tile + i]) + static_cast<uint32_t>(noise[i])) & to.mask;
    } else {
      const auto write = [&]<class Float>(Float* out) {
        for (int64_t i = 0; i < n; ++i)
          out[tile + i] = static_cast<Float>((static_cast<double>(in[tile + i]) + noise[i]) * to.unit);
      };
      const bool wide = static_cast<Dtype>(span.dtype) == Dtype::f64;
      wide ? write(reinterpret_cast<double*>(span.out)) : write(reinterpret_cast<float*>(span.out));
    }
  }
}

template <class Lanes>
void noise_integers(const NoiseTable& table, const Key& key, const Span& span, const LatticeOut& to, int64_t begin,
                    int64_t end) {
  with_cipher(key, [&](auto cipher) { noise_range<Lanes, decltype(cipher)>(table, key, span, to, begin, end); });
}

}  // namespace ldpk
