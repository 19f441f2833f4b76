// SPDX-License-Identifier: Apache-2.0
// Mechanisms that report a cell, in CUDA: a warp's step (step.cuh has that of one-bit mechanisms). Every
// element takes a draw of 32 bits, so both keystreams are computed for it, and their halves meet in the tile.
#pragma once

#include "cells_plan.h"
#include "skeleton.cuh"

namespace ldpk {

// A law in a thread's registers, which a plan's becomes, where it stays: to read it anew for every weight costs a fifth
// of the instructions.
template <class Float, class Planned>
struct CellsLaw {
  Planned law;
  Float center, slope, lowest, step;

  LDPK_DEVICE CellsLaw(const Planned& planned)
      : law(planned),
        center(static_cast<Float>(law.center)),
        slope(static_cast<Float>(law.slope)),
        lowest(static_cast<Float>(law.lowest)),
        step(static_cast<Float>(law.step)) {}

  // Piecewise::turn. A NaN is taken for the center, whose turn is 0, which is what the device rounds a NaN to.
  LDPK_DEVICE int32_t turn(Float x) const {
    if (sizeof(Float) == 8 && x != x) x = center;
    const Float z = (x - center) * slope;
    if constexpr (sizeof(Float) == 8) {
      return ScalarLanes::round_within(z, law.k_lo, law.k_hi);
    } else {
      const int32_t k = __float2int_rn(z);
      const int32_t at_least = z <= law.floor ? law.k_lo : k;
      return z >= law.ceiling ? law.k_hi : at_least;
    }
  }

  LDPK_DEVICE uint32_t cell(int32_t k, uint32_t draw) const {
    if constexpr (requires { law.last_draw; }) {
      // Fewer of the other draws are "upper" than there are, so their end is no more than 2^32 - 1.
      const uint32_t raised = static_cast<uint32_t>(k) * law.coin_factor + law.coin_offset;
      const uint32_t upper_end = law.coin_start + ScalarLanes::multiply_high(raised, law.coin_scale);
      uint32_t coin = draw < upper_end ? law.upper_cell : law.lower_cell;
      settle(coin);  // a branch, if lanes differ, costs both sides and its own instructions
      const bool tossed = draw > law.last_draw;
      uint32_t cell = circle_cell(k, draw);
      settle(cell);
      return tossed ? coin : cell;
    } else {
      return circle_cell(k, draw);
    }
  }

  // lowest + step * cell. Nothing is rounded: the product is a number as well as the sum.
  LDPK_DEVICE Float value(uint32_t cell) const { return fma(step, static_cast<Float>(cell), lowest); }

 private:
  // Piecewise::cell.
  LDPK_DEVICE uint32_t circle_cell(int32_t k, uint32_t draw) const {
    const bool rest = draw >= law.band_draws;
    if (rest) draw = draw * law.rest_factor + law.rest_offset;
    const uint32_t scale = rest ? law.rest_scale : law.band_scale, start = rest ? law.rest_start : law.band_start;
    const uint32_t place = start + ScalarLanes::multiply_high(draw, scale) + static_cast<uint32_t>(k);
    return ScalarLanes::multiply_high(ScalarLanes::smaller(place, place - law.places), law.cell_factor);
  }
};

// Two draws of 32 bits from a word of each keystream.
LDPK_DEVICE uint32_t first_draw(uint32_t high, uint32_t low) { return __byte_perm(low, high, 0x5410); }
LDPK_DEVICE uint32_t second_draw(uint32_t high, uint32_t low) { return __byte_perm(low, high, 0x7632); }

// A warp's step, as one of its lanes sees it. The tile has the draws of its elements in order.
template <class Planned, class Cipher, Dtype dtype, Output result>
struct CellsStep {
  static_assert(result == Output::values || result == Output::cells);
  using Float = FloatOf<dtype>;
  using Bits = BitsOf<dtype>;
  using Law = CellsLaw<Float, Planned>;
  using Out = uint8_t;
  static constexpr int groups = Cipher::block_words > 4 ? Cipher::block_words / 4 : sizeof(Bits) == 8 ? 1 : 2;
  static constexpr int elements = groups * kLanes * 8;
  static constexpr int tile_words = elements;
  static constexpr int per_block = 2 * Cipher::block_words;
  static constexpr int blocks = elements / kLanes / per_block;  // of a lane
  static constexpr int per_out = 1;
  static constexpr int per_vector = 16 / sizeof(Bits);
  static constexpr int vectors = 8 / per_vector;             // of a group
  static constexpr bool early = groups * vectors <= 4;       // weights are loaded before the cipher runs
  static constexpr bool striped = result == Output::values;  // else a lane has eight elements in a row

  const Chunk<Bits, Out>& chunk;
  const Law& law;
  const Key& key;
  const int at;  // the step's first element
  const int lane;
  const bool whole;  // every element exists, and memory is aligned
  Bits* const data;  // the lane's first element
  Vector weights[early ? groups * vectors : 1];

  LDPK_DEVICE CellsStep(const Chunk<Bits, Out>& chunk, const Law& law, const Key& key, int at, int lane)
      : chunk(chunk),
        law(law),
        key(key),
        at(at),
        lane(lane),
        whole(chunk.aligned && at >= chunk.begin && at + elements <= chunk.end &&
              (result == Output::values || reinterpret_cast<size_t>(chunk.out) % 8 == 0)),
        data(chunk.data + (at + place(0, 0))) {}

  LDPK_DEVICE void begin(uint32_t* tile) {
    if (early && whole) {
#pragma unroll
      for (int i = 0; i < groups * vectors; ++i) weights[i] = load(i / vectors, i % vectors);
    }
    const uint64_t first = chunk.first / per_block + at / per_block;
#pragma unroll
    for (int b = 0; b < blocks; ++b) {
      const int block = b * kLanes + lane;
      uint32_t high[Cipher::block_words], low[Cipher::block_words];
      Cipher::block(key, 0, 0, first + block, high);
      Cipher::block(key, 1, 0, first + block, low);
#pragma unroll
      for (int w = 0; w < Cipher::block_words; w += 2) {
        Vector* out = reinterpret_cast<Vector*>(tile + block * per_block + 2 * w);
        *out = {first_draw(high[w], low[w]), second_draw(high[w], low[w]), first_draw(high[w + 1], low[w + 1]),
                second_draw(high[w + 1], low[w + 1])};
      }
    }
  }

  LDPK_DEVICE void finish(const uint32_t* tile) const {
    if (whole) {
#pragma unroll
      for (int g = 0; g < groups; ++g) decide(g, tile);
    } else {
#pragma unroll 1
      for (int g = 0; g < groups; ++g) decide_one_by_one(g, tile);
    }
  }

 private:
  // Element i of group g.
  LDPK_DEVICE int place(int g, int i) const {
    if constexpr (!striped) return (g * kLanes + lane) * 8 + i;
    return ((g * vectors + i / per_vector) * kLanes + lane) * per_vector + i % per_vector;
  }
  LDPK_DEVICE Vector load(int g, int v) const { return *reinterpret_cast<const Vector*>(data + vector_offset(g, v)); }
  static constexpr LDPK_DEVICE int vector_offset(int g, int v) {
    return striped ? (g * vectors + v) * kLanes * per_vector : g * kLanes * 8 + v * per_vector;
  }
  LDPK_DEVICE uint32_t cell_of(Bits x, uint32_t draw) const {
    return law.cell(law.turn(Element<dtype>::number(x)), draw);
  }

  LDPK_DEVICE void decide(int g, const uint32_t* tile) const {
    Bits x[8];
    uint32_t cells[8];
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
      const Vector loaded = early ? weights[early ? g * vectors + v : 0] : load(g, v);
      memcpy(x + v * per_vector, &loaded, sizeof(Vector));
    }
    constexpr int run = per_vector < 4 ? per_vector : 4;  // consecutive elements
#pragma unroll
    for (int r = 0; r < 8; r += run) {
      struct alignas(4 * run) Run {
        uint32_t draws[run];
      };
      const Run in = *reinterpret_cast<const Run*>(tile + place(g, r));
#pragma unroll
      for (int i = 0; i < run; ++i) cells[r + i] = cell_of(x[r + i], in.draws[i]);
    }
    if constexpr (result == Output::cells) {
      struct alignas(8) Bytes {
        uint32_t words[2] = {0, 0};
      } bytes;
#pragma unroll
      for (int i = 7; i >= 0; --i) bytes.words[i / 4] = bytes.words[i / 4] * 256 + cells[i];
      *reinterpret_cast<Bytes*>(chunk.out + (at + place(g, 0))) = bytes;
    } else {
      Vector stored[vectors];
#pragma unroll
      for (int i = 0; i < 8; i += 2) {
        Bits pair[2];
        values(cells[i], cells[i + 1], pair);
        memcpy(reinterpret_cast<Bits*>(stored) + i, pair, sizeof(pair));
      }
#pragma unroll
      for (int v = 0; v < vectors; ++v) store_vector(data + vector_offset(g, v), stored[v]);
    }
  }

  // Two of them; a 16-bit format rounds nothing either.
  LDPK_DEVICE void values(uint32_t a, uint32_t b, Bits (&out)[2]) const {
    const Float of[2] = {law.value(a), law.value(b)};
    if constexpr (dtype == Dtype::bf16) {
      const uint32_t both = __byte_perm(__float_as_uint(of[0]), __float_as_uint(of[1]), 0x7632);
      memcpy(out, &both, sizeof(both));
    } else if constexpr (dtype == Dtype::f16) {
      const __half2 both = __floats2half2_rn(of[0], of[1]);
      memcpy(out, &both, sizeof(both));
    } else {
      memcpy(out, of, sizeof(of));
    }
  }

  // Tails and unaligned memory.
  LDPK_DEVICE void decide_one_by_one(int g, const uint32_t* tile) const {
#pragma unroll 1
    for (int i = 0; i < 8; ++i) {
      const int in_step = (g * 8 + i) * kLanes + lane, e = at + in_step;
      if (e < chunk.begin || e >= chunk.end) continue;
      const uint32_t cell = cell_of(chunk.data[e], tile[in_step]);
      if constexpr (result == Output::cells) {
        chunk.out[e] = static_cast<uint8_t>(cell);
      } else {
        chunk.data[e] = rounded_bits<dtype>(law.value(cell));
      }
    }
  }
};

template <template <class> class Mechanism>
struct InChunks<Cells<Mechanism>> {
  static constexpr int few = kFewCells, many = kManyCells;
  template <class Cipher, Dtype dtype, Output result>
  using Step = CellsStep<typename DeviceLaw<typename Cells<Mechanism>::Law>::Planned, Cipher, dtype, result>;
};

}  // namespace ldpk
