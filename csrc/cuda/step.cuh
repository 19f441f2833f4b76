// SPDX-License-Identifier: Apache-2.0
// A warp's step through a mechanism. A warp takes a step of 256 elements or a few times that, in two halves with a
// barrier between them. First its lanes load weights and compute consecutive cipher blocks into a tile in shared
// memory; then each lane decides its elements with draws from the tile. So a mechanism reads its draws in order and
// knows neither the cipher nor which lane computed them, and every 128-bit access of a warp is to 512 consecutive
// bytes.
#pragma once

#include "../chacha.h"
#include "../philox.h"
#include "one_bit_plan.h"

namespace ldpk {

struct alignas(16) Vector {
  uint32_t words[4];
};

// To global memory, in one instruction: nvcc takes the struct apart, and does not always put it together again.
LDPK_DEVICE void store_vector(void* p, const Vector& v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(p)), "r"(v.words[0]),
               "r"(v.words[1]), "r"(v.words[2]), "r"(v.words[3])
               : "memory");
}

// The value is computed here: nvcc neither moves nor repeats the computation where the value is used.
LDPK_DEVICE void settle([[maybe_unused]] uint32_t& x) { asm volatile("" : "+r"(x)); }
template <class T>
LDPK_DEVICE void settle([[maybe_unused]] T*& p) {
  size_t address = __cvta_generic_to_global(p);
  asm volatile("" : "+l"(address));
  p = static_cast<T*>(__cvta_global_to_generic(address));  // so that it is still known to be global
}

// A thread block's elements, numbered from a stream unit: [begin, end) exist.
template <class Bits, class Out>
struct Chunk {
  Bits* data;
  Out* out;
  uint64_t first;  // the stream's number of element 0
  int32_t begin;
  int32_t end;
  bool aligned;  // data, to 16 bytes
};

// Draw `element` of keystream 1. The word is found by masks: nvcc makes an index of a comparison, and local memory of a
// block that is indexed at run time.
template <class Cipher>
LDPK_DEVICE int32_t low_draw(const Key& key, uint64_t element) {
  constexpr uint32_t per_block = 2 * Cipher::block_words;
  uint32_t words[Cipher::block_words];
  Cipher::block(key, 1, 0, element / per_block, words);
  const uint32_t at = element % per_block;
  uint32_t found = 0;
#pragma unroll
  for (uint32_t w = 0; w < Cipher::block_words; ++w) {
    uint32_t mask = 0u - (w == at / 2);
    settle(mask);
    found |= words[w] & mask;
  }
  return static_cast<int32_t>(at % 2 ? found >> 16 : found & 0xffff);
}

// bits << 1, and the sign of x.
LDPK_DEVICE uint32_t with_sign(uint32_t bits, float x) { return __funnelshift_l(__float_as_uint(x), bits, 1); }

// The sign of one number in all 32 bits, or of two in 16 each, the first in the lower.
template <int count>
LDPK_DEVICE uint32_t signs(const float* x) {
  if constexpr (count == 1) return static_cast<uint32_t>(static_cast<int32_t>(bit_cast<uint32_t>(x[0])) >> 31);
  uint32_t masks;
  asm("prmt.b32 %0, %1, %2, 0xffbb;" : "=r"(masks) : "r"(__float_as_uint(x[0])), "r"(__float_as_uint(x[count - 1])));
  return masks;
}

// For weights among which there is no NaN.
struct NumberLanes : ScalarLanes {
  template <class Float>
  static LDPK_DEVICE Float replace_nan(Float x, double) {
    return x;
  }
};

// A warp's step, as one of its lanes sees it: `groups` groups of 8 elements.
template <template <class> class Mechanism, class Cipher, Dtype dtype, Output result>
struct Step {
  using Float = FloatOf<dtype>;
  using Bits = BitsOf<dtype>;
  using Law = typename DeviceLaw<typename OneBit<Mechanism>::Law>::Planned;
  using Out = std::conditional_t<result == Output::thresholds, int64_t, uint8_t>;
  using Lanes = ScalarLanes;
  static constexpr int groups = Cipher::block_words > 4 ? Cipher::block_words / 4 : 8 / sizeof(Bits);
  static constexpr int elements = groups * kLanes * 8;
  static constexpr int tile_words = elements / 2;
  static constexpr int blocks = elements / kLanes / (2 * Cipher::block_words);  // of a lane
  static constexpr int per_out = result == Output::bits ? 8 : 1;
  static constexpr int per_vector = 16 / sizeof(Bits);
  static constexpr int vectors = 8 / per_vector;             // of a group
  static constexpr bool early = groups * vectors <= 4;       // weights are loaded before the cipher runs
  static constexpr bool striped = result == Output::values;  // else a lane has the elements of one byte of a report
  static constexpr bool guesses = sizeof(Float) == 4 && requires(const Law& law) { law.guess; };

  const Chunk<Bits, Out>& chunk;
  const Law& law;
  const Key& key;
  const int at;  // the step's first element
  const int lane;
  const bool whole;  // every element exists, and data is aligned
  Bits* const data;  // the lane's first element
  Vector weights[early ? groups * vectors : 1];

  LDPK_DEVICE Step(const Chunk<Bits, Out>& chunk, const Law& law, const Key& key, int at, int lane)
      : chunk(chunk),
        law(law),
        key(key),
        at(at),
        lane(lane),
        whole(result != Output::thresholds && chunk.aligned && at >= chunk.begin && at + elements <= chunk.end),
        data(chunk.data + (at + place<true>(0, 0))) {}

  LDPK_DEVICE void begin(uint32_t* tile) {
    if (early && whole) {
#pragma unroll
      for (int i = 0; i < groups * vectors; ++i) weights[i] = load(i / vectors, i % vectors);
    }
    if constexpr (result != Output::thresholds) {
      const uint64_t first = chunk.first / (2 * Cipher::block_words) + at / (2 * Cipher::block_words);
#pragma unroll
      for (int b = 0; b < blocks; ++b) {
        const int block = b * kLanes + lane;
        uint32_t words[Cipher::block_words];
        Cipher::block(key, 0, 0, first + block, words);
#pragma unroll
        for (int w = 0; w < Cipher::block_words; w += 4) {
          Vector* out = reinterpret_cast<Vector*>(tile + block * Cipher::block_words + w);
          *out = {words[w], words[w + 1], words[w + 2], words[w + 3]};
        }
      }
    }
  }

  LDPK_DEVICE void finish(const uint32_t* tile) const {
    if (whole) {
#pragma unroll
      for (int g = 0; g < groups; ++g) {
        if (!decide(g, tile)) [[unlikely]]
          decide_slowly<striped>(g, tile);
      }
    } else {
#pragma unroll 1
      for (int g = 0; g < groups; ++g) decide_slowly<false>(g, tile);
    }
  }

 private:
  // Element i of group g. A warp's store must fill whole 32-byte sectors, so where values are written lanes take turns:
  // by vectors if `by_vectors`, else by elements.
  template <bool by_vectors>
  LDPK_DEVICE int place(int g, int i) const {
    if constexpr (!striped) return (g * kLanes + lane) * 8 + i;
    if constexpr (!by_vectors) return (g * 8 + i) * kLanes + lane;
    return ((g * vectors + i / per_vector) * kLanes + lane) * per_vector + i % per_vector;
  }
  LDPK_DEVICE Vector load(int g, int v) const { return *reinterpret_cast<const Vector*>(data + vector_offset(g, v)); }
  static constexpr LDPK_DEVICE int vector_offset(int g, int v) {
    return striped ? (g * vectors + v) * kLanes * per_vector : g * kLanes * 8 + v * per_vector;
  }
  LDPK_DEVICE void choose(Bits* p, bool upper) const {
    Lanes::store_choice(p, upper, static_cast<Bits>(law.lower), static_cast<Bits>(law.upper));
  }

  // The group by its high draws; false, with nothing written, if one of them may tie (some 8 in 2^16) or a weight is
  // NaN.
  LDPK_DEVICE bool decide(int g, const uint32_t* tile) const {
    Bits x[8];
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
      const Vector loaded = early ? weights[early ? g * vectors + v : 0] : load(g, v);
      memcpy(x + v * per_vector, &loaded, sizeof(Vector));
    }
    uint32_t draws[4];
    constexpr int run = striped ? per_vector : 8;  // consecutive elements
#pragma unroll
    for (int r = 0; r < 8; r += run) {
      struct alignas(2 * run) Run {
        uint32_t words[run / 2];
      };
      const Run words = *reinterpret_cast<const Run*>(tile + place<true>(g, r) / 2);
      memcpy(draws + r / 2, &words, sizeof(Run));
    }
    Bits y[8];
    uint32_t byte = 0;
    const bool sure = guesses ? guess(x, draws, y, byte) : compare(x, draws, y, byte);
    Vector stored[vectors];
    memcpy(stored, y, sizeof(y));
#pragma unroll
    for (int w = 0; w < 4 * vectors; ++w) settle(result == Output::bits ? byte : stored[w / 4].words[w % 4]);
    if (!sure) [[unlikely]]
      return false;
    if constexpr (result == Output::bits) {
      chunk.out[(at + place<true>(g, 0)) / 8] = static_cast<uint8_t>(byte);
    } else {
#pragma unroll
      for (int v = 0; v < vectors; ++v) store_vector(data + vector_offset(g, v), stored[v]);
    }
    return true;
  }

  static LDPK_DEVICE int32_t high_draw(const uint32_t (&draws)[4], int i) {
    return i % 2 ? static_cast<int32_t>(draws[i / 2]) >> 16 : static_cast<int16_t>(draws[i / 2]);
  }

  // Decisions by thresholds.
  LDPK_DEVICE bool compare(const Bits (&x)[8], const uint32_t (&draws)[4], Bits (&y)[8], uint32_t& byte) const {
    bool rare = false;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const Float weight = Element<dtype>::number(x[i]);
      rare |= weight != weight;
      const int32_t k = Mechanism<NumberLanes>::threshold(weight, law);
      const auto never = [&] { return rare = true, 0xffff; };  // as a low draw, it is below no threshold
      const bool upper = is_upper<Lanes>(k, high_draw(draws, i), never);
      byte |= Lanes::bits(upper) << i;
      choose(y + i, upper);
    }
    return !rare;
  }

  // The same by guesses, where all eight are sure. What is neither above nor below the center by a number is not: times
  // zero, it is NaN.
  LDPK_DEVICE bool guess(const Bits (&x)[8], const uint32_t (&draws)[4], Bits (&y)[8], uint32_t& byte) const {
    if constexpr (guesses) {
      float beyond = 1, numbers = 0;
      float guessed[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float difference = Element<dtype>::number(x[i]) - law.guess.center;
        numbers = TwoPointGuess::fused(difference, 0, numbers);
        guessed[i] = law.guess(difference, static_cast<float>(high_draw(draws, i)));
        beyond *= TwoPointGuess::kept(fabsf(guessed[i]) - kSure);
      }
      if constexpr (result == Output::bits) {
        uint32_t lower = 0;
#pragma unroll
        for (int i = 7; i >= 0; --i) lower = with_sign(lower, guessed[i]);
        byte = lower ^ 0xff;
      } else {
        constexpr int at_once = 4 / sizeof(Bits);
        const uint32_t spread = sizeof(Bits) == 2 ? 0x10001u : 1u;
        const uint32_t upper = static_cast<uint32_t>(law.upper) * spread;
        const uint32_t either = static_cast<uint32_t>(law.lower ^ law.upper) * spread;
#pragma unroll
        for (int i = 0; i < 8; i += at_once) {
          const uint32_t word = upper ^ (either & signs<at_once>(guessed + i));
          memcpy(y + i, &word, sizeof(word));
        }
      }
      return beyond + numbers > 0;
    }
    return false;
  }

  // The group one element at a time: ties, NaN, tails, unaligned data. Bits of elements that do not exist are zero.
  template <bool by_vectors>
  LDPK_DEVICE void decide_slowly(int g, const uint32_t* tile) const {
    uint32_t byte = 0;
    bool any = false;
#pragma unroll 1
    for (int i = 0; i < 8; ++i) {
      const int in_step = place<by_vectors>(g, i), e = at + in_step;
      if (e < chunk.begin || e >= chunk.end) continue;
      any = true;
      const int32_t k = Mechanism<Lanes>::threshold(Element<dtype>::number(chunk.data[e]), law);
      if constexpr (result == Output::thresholds) {
        Lanes::store_integers(chunk.out + e, Lanes::as_unsigned(k) + (1u << 31));
      } else {
        const int32_t high = Lanes::load_draws(reinterpret_cast<const uint16_t*>(tile) + in_step);
        const bool upper = is_upper<Lanes>(k, high, [&] { return low_draw<Cipher>(key, chunk.first + e); });
        byte |= Lanes::bits(upper) << i;
        if constexpr (result == Output::values) choose(chunk.data + e, upper);
      }
    }
    if (result == Output::bits && any) chunk.out[(at + place<by_vectors>(g, 0)) / 8] = static_cast<uint8_t>(byte);
  }
};

template <template <class> class Mechanism>
struct InChunks<OneBit<Mechanism>> {
  static constexpr int few = kFewSpans, many = kManySpans;
  template <class Cipher, Dtype dtype, Output result>
  using Step = ldpk::Step<Mechanism, Cipher, dtype, result>;
};

}  // namespace ldpk
