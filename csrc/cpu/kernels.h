// SPDX-License-Identifier: Apache-2.0
// The CPU skeleton: elements [begin, end) of one tensor through a mechanism, a tile of keystream at a time. Each file
// cpu/isa_*.cpp compiles it once for its instruction set, and names no other file's lanes: the linker merges equal
// instantiations, and must not find one that was compiled for a better machine.
#pragma once

#include <type_traits>

#include "bit_counter.h"
#include "dispatch.h"
#include "keystream.h"

namespace ldpk {

template <Dtype>
struct Element;
template <>
struct Element<Dtype::f32> {
  using Bits = uint32_t;
  template <class Lanes>
  static LDPK_FN auto load(const Bits* p) { return Lanes::load(reinterpret_cast<const float*>(p)); }
};
template <>
struct Element<Dtype::f64> {
  using Bits = uint64_t;
  template <class Lanes>
  static LDPK_FN auto load(const Bits* p) { return Lanes::load(reinterpret_cast<const double*>(p)); }
};
template <>
struct Element<Dtype::bf16> {
  using Bits = uint16_t;
  template <class Lanes>
  static LDPK_FN auto load(const Bits* p) { return Lanes::load_bf16(p); }
};
template <>
struct Element<Dtype::f16> {
  using Bits = uint16_t;
  template <class Lanes>
  static LDPK_FN auto load(const Bits* p) { return Lanes::load_f16(p); }
};

constexpr int kTile = 1024;

// What a tile of weights becomes. A group is 8 elements, one byte of a report, or a register if that is longer.
enum class Output { values, bits, thresholds };

template <class Lanes>
constexpr int kGroup = Lanes::count > 8 ? Lanes::count : 8;

template <class Lanes, class Cipher>
__attribute__((noinline)) typename Lanes::i32 low_draws(const Key& key, uint64_t element) {
  alignas(64) uint32_t buffer[2 * kStepBytes / 4];
  return Lanes::load_draws(draws16<Lanes>(Cipher{}, key, 1, element, Lanes::count, buffer)) & 0xffff;
}

template <class Lanes, class Cipher, Dtype dtype, Output output>
LDPK_FN void two_point_group(const typename Element<dtype>::Bits* in, void* out, const uint16_t* draws, uint64_t element,
                             const TwoPointLaw& law, const Key& key) {
  using Bits = typename Element<dtype>::Bits;
  uint32_t bits = 0;
#pragma GCC unroll 8
  for (int i = 0; i < kGroup<Lanes>; i += Lanes::count) {
    const auto k = TwoPoint<Lanes>::threshold(Element<dtype>::template load<Lanes>(in + i), law);
    if constexpr (output == Output::thresholds) {
      Lanes::store_threshold(static_cast<int64_t*>(out) + i, k);
    } else {
      const auto upper = TwoPoint<Lanes>::is_upper(k, Lanes::load_draws(draws + i),
                                                   [&] { return low_draws<Lanes, Cipher>(key, element + i); });
      if constexpr (output == Output::bits) bits |= Lanes::bits(upper) << i;
      if constexpr (output == Output::values) {
        Lanes::store_choice(static_cast<Bits*>(out) + i, upper, static_cast<Bits>(law.lower), static_cast<Bits>(law.upper));
      }
    }
  }
  if constexpr (output == Output::bits) memcpy(out, &bits, kGroup<Lanes> / 8);
}

// `begin` is a multiple of 8. Values go where the weights were, bits and thresholds to span.out.
template <class Lanes, class Cipher, Dtype dtype, Output output>
void two_point_range(const Span& span, const TwoPointLaw& span_law, const Key& key, int64_t begin, int64_t end) {
  using Bits = typename Element<dtype>::Bits;
  using Out = std::conditional_t<output == Output::bits, uint8_t, std::conditional_t<output == Output::values, Bits, int64_t>>;
  constexpr int group = kGroup<Lanes>;
  constexpr int per_out = output == Output::bits ? 8 : 1;
  const TwoPointLaw law = span_law;  // a local copy: the compiler sees that no store changes it
  const Bits* in = reinterpret_cast<const Bits*>(span.data);
  Out* out = reinterpret_cast<Out*>(output == Output::values ? span.data : span.out);
  alignas(64) uint32_t buffer[(kTile * 2 + 2 * kStepBytes) / 4];
  for (int64_t tile = begin; tile < end; tile += kTile) {
    const int64_t n = end - tile < kTile ? end - tile : kTile;
    const uint64_t element = span.first + tile;
    const uint16_t* draws = nullptr;
    if constexpr (output != Output::thresholds) draws = draws16<Lanes>(Cipher{}, key, 0, element, n, buffer);
    int64_t i = 0;
    for (; i + group <= n; i += group) {
      two_point_group<Lanes, Cipher, dtype, output>(in + tile + i, out + (tile + i) / per_out, draws + i, element + i, law, key);
    }
    if (i < n) {  // the last group, in padded copies; a report's unused bits are zero
      const int64_t rest = n - i;
      Bits padded[group] = {};
      Out result[group / per_out];
      memcpy(padded, in + tile + i, rest * sizeof(Bits));
      two_point_group<Lanes, Cipher, dtype, output>(padded, result, draws + i, element + i, law, key);
      if constexpr (output == Output::bits) {
        for (int64_t e = rest; e < group; ++e) result[e / 8] &= ~(1u << (e % 8));
      }
      memcpy(out + (tile + i) / per_out, result, (rest + per_out - 1) / per_out * sizeof(Out));
    }
  }
}

template <class Lanes, class Cipher, Output output>
void two_point_any_dtype(const Span& span, const TwoPointLaw& law, const Key& key, int64_t begin, int64_t end) {
  switch (static_cast<Dtype>(span.dtype)) {
    case Dtype::f32: return two_point_range<Lanes, Cipher, Dtype::f32, output>(span, law, key, begin, end);
    case Dtype::f64: return two_point_range<Lanes, Cipher, Dtype::f64, output>(span, law, key, begin, end);
    case Dtype::bf16: return two_point_range<Lanes, Cipher, Dtype::bf16, output>(span, law, key, begin, end);
    case Dtype::f16: return two_point_range<Lanes, Cipher, Dtype::f16, output>(span, law, key, begin, end);
  }
}

template <class Lanes, Output output>
void two_point(const Span& span, const TwoPointLaw& law, const Key& key, int64_t begin, int64_t end) {
  if (key.size == ChaCha20::key_words) return two_point_any_dtype<Lanes, ChaCha20, output>(span, law, key, begin, end);
  two_point_any_dtype<Lanes, Philox, output>(span, law, key, begin, end);
}

template <class Lanes, class Cipher>
void keystream_of(const Key& key, uint32_t stream, uint64_t first_block, int64_t blocks, uint32_t* out) {
  alignas(64) uint32_t buffer[2 * kStepBytes / 4];
  for (int64_t b = 0; b < blocks; b += kStepBlocks) {
    const int64_t n = blocks - b < kStepBlocks ? blocks - b : kStepBlocks;
    fill<Lanes>(Cipher{}, key, stream, first_block + b, n, buffer);
    memcpy(out + b * Cipher::block_words, buffer, n * Cipher::block_words * 4);
  }
}

template <class Lanes>
void keystream(const Key& key, uint32_t stream, uint64_t first_block, int64_t blocks, uint32_t* out) {
  if (key.size == ChaCha20::key_words) return keystream_of<Lanes, ChaCha20>(key, stream, first_block, blocks, out);
  keystream_of<Lanes, Philox>(key, stream, first_block, blocks, out);
}

template <class Lanes>
Summary summarize(const Span& span, int64_t begin, int64_t end) {
  const auto of = [&](auto dtype) {
    using Bits = typename Element<dtype()>::Bits;
    return summarize_range<Lanes, dtype()>(reinterpret_cast<const Bits*>(span.data) + begin, end - begin);
  };
  switch (static_cast<Dtype>(span.dtype)) {
    case Dtype::f32: return of(std::integral_constant<Dtype, Dtype::f32>{});
    case Dtype::f64: return of(std::integral_constant<Dtype, Dtype::f64>{});
    case Dtype::bf16: return of(std::integral_constant<Dtype, Dtype::bf16>{});
    default: return of(std::integral_constant<Dtype, Dtype::f16>{});
  }
}

template <class Lanes>
constexpr Kernels kernels_for(const char* name) {
  return {name, two_point<Lanes, Output::values>, two_point<Lanes, Output::bits>, two_point<Lanes, Output::thresholds>,
          keystream<Lanes>, summarize<Lanes>, count_bits<Lanes>,
          decode_counts<Lanes, float>, decode_counts<Lanes, double>};
}

}  // namespace ldpk
