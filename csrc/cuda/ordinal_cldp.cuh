// SPDX-License-Identifier: Apache-2.0
// Ordinal CLDP in CUDA. A thread takes the elements of one block of the keystreams after another and decides what their
// first draws decide. What is left goes to queues of the thread block, from which its threads take it: first what the
// exponential mechanism rejected, as half of the samples of a weight at the end of the range are, and tries again with
// draws of its own; then the few that leading digits left open and Laplace's second zeros, which start anew, so that
// nothing but their numbers is kept.
#pragma once

#include "../mechanisms/ordinal_cldp.h"
#include "step.cuh"

namespace ldpk {

constexpr int kCldpThreads = 128;
constexpr int kCldpChunk = 4096;  // elements of a thread block, at most

using CldpPlan = ChunkedPlan<OrdinalCldpLaw, 8>;
static_assert(sizeof(CldpPlan) <= kLargestPlan);

// Elements that are left, by their numbers in the chunk, in whatever order threads come.
struct CldpQueue {
  int32_t count;
  uint16_t elements[kCldpChunk];

  LDPK_DEVICE void push(uint16_t element) { elements[atomicAdd(&count, 1)] = element; }
};

// What the threads of a block share: their law's alias tables, and the queues.
struct CldpShared {
  uint64_t entries[2 * kCldpColumns / 4];
  CldpQueue rejected, open;
  int32_t taken;  // of those that were rejected

  LDPK_DEVICE void begin(int thread, const OrdinalCldpLaw& law) {
    if (thread < 2 * kCldpColumns / 4) entries[thread] = law.entries[thread];
    if (thread == 0) rejected.count = open.count = taken = 0;
  }
  LDPK_DEVICE uint64_t look_up(uint64_t draw) const {
    return ldpk::look_up(reinterpret_cast<const uint16_t*>(entries), draw);
  }
};

// A thread block's elements begin `first` behind the span's.
template <class Cipher>
struct CldpBlock {
  static constexpr int elements = Cipher::block_words / 2;  // of a thread, at once
  static constexpr int at_once = kCldpThreads * elements;   // of its thread block

  const Span& span;
  const OrdinalCldpLaw& law;
  const Key& key;
  const int64_t first;

  LDPK_DEVICE void begin(int from, CldpShared& shared) const {
    const int64_t start = first + from;
    if (start + elements <= 0 || start >= span.numel) return;
    const uint64_t block = static_cast<uint64_t>(span.first + start) / elements;
    uint64_t words[elements], low[elements];
    draws(0, block, words);
    if (law.wide) draws(1, block, low);
    const PlainSample plain(law);
#pragma unroll
    for (int i = 0; i < elements; ++i) {
      const int64_t e = start + i;
      int64_t sample;
      if (e < 0 || e >= span.numel) continue;
      const uint64_t found = shared.look_up(words[i]);
      if (plain(words[i], found, law.wide ? low[i] : words[i], load(e), sample)) {
        store(e, sample);
      } else {
        (is_rejected(plain, words[i], found) ? shared.rejected : shared.open).push(static_cast<uint16_t>(from + i));
      }
    }
  }

  // When all threads have begun. A thread that has a sample takes the next element, so that none waits for another.
  LDPK_DEVICE void try_again(CldpShared& shared) const {
    const PlainSample plain(law);
    uint16_t element = 0;
    uint32_t number = 0;
    int64_t v = 0;
#pragma unroll 1
    for (;;) {
      if (number == 0) {
        const int32_t next = atomicAdd(&shared.taken, 1);
        if (next >= shared.rejected.count) return;
        element = shared.rejected.elements[next];
        v = load(first + element);
      }
      number += kCldpDraws;
      const uint64_t at = static_cast<uint64_t>(span.first + first + element);
      const uint64_t word = draw(number, at), low = law.wide ? draw(number + 1, at) : word;
      const uint64_t found = shared.look_up(word);
      int64_t sample;
      if (plain(word, found, low, v, sample)) {
        store(first + element, sample);
      } else if (is_rejected(plain, word, found)) {
        continue;
      } else {
        shared.open.push(element);
      }
      number = 0;
    }
  }

  // When none tries again.
  LDPK_DEVICE void finish(int thread, const CldpShared& shared) const {
#pragma unroll 1
    for (int i = thread; i < shared.open.count; i += kCldpThreads) alone(first + shared.open.elements[i]);
  }

 private:
  // Whether a draw that is no sample leaves nothing to the next attempt.
  LDPK_DEVICE bool is_rejected(const PlainSample& plain, uint64_t draw, uint64_t found) const {
    return !law.saturate && plain.is_closed(draw, found);
  }

  LDPK_DEVICE void alone(int64_t e) const {
    const uint64_t element = static_cast<uint64_t>(span.first + e);
    const int64_t v = load(e);
    const OrdinalCldp walk{law};
    uint64_t known[kCldpDraws] = {}, carried = 0;
    uint32_t have = 0, number = 0;
    int64_t sample;
    // An attempt begins anew with every draw that it misses: so the cipher is there once.
#pragma unroll 1
    for (;;) {
      int missing = -1;
      const auto more = [&](int d) {
        if (missing < 0 && !(have >> d & 1)) missing = d;
        return known[d];
      };
      uint64_t then = carried;
      const bool done = walk.attempt(more(0), more, v, then, sample);
      if (missing >= 0) {
        const uint64_t drawn = draw(number + missing, element);
#pragma unroll
        for (int d = 0; d < kCldpDraws; ++d) known[d] = d == missing ? drawn : known[d];
        have |= 1u << missing;
        continue;
      }
      if (done) break;
      carried = then;
      have = 0;
      number += kCldpDraws;
    }
    store(e, sample);
  }

  LDPK_DEVICE void draws(uint32_t number, uint64_t block, uint64_t (&out)[elements]) const {
    uint32_t words[Cipher::block_words];
    Cipher::block(key, number, 0, block, words);
#pragma unroll
    for (int i = 0; i < elements; ++i) out[i] = words[2 * i] | uint64_t{words[2 * i + 1]} << 32;
  }

  // The word is found by masks: nvcc makes local memory of a block that is indexed at run time.
  LDPK_DEVICE uint64_t draw(uint32_t number, uint64_t element) const {
    uint64_t words[elements], found = 0;
    draws(number, element / elements, words);
#pragma unroll
    for (uint32_t i = 0; i < elements; ++i) {
      uint32_t mask = 0u - (i == element % elements);
      settle(mask);
      found |= words[i] & (mask | uint64_t{mask} << 32);
    }
    return found;
  }

  LDPK_DEVICE int64_t load(int64_t e) const {
    if (span.dtype == kIntegers) {
      const int64_t v = reinterpret_cast<const int64_t*>(span.data)[e];
      const int64_t below = v > law.bound ? law.bound : v;
      return below < -law.bound ? -law.bound : below;
    }
    double x = 0;
    with_dtype(span, [&](auto dtype) {
      constexpr Dtype d = decltype(dtype)::value;
      x = Element<d>::number(reinterpret_cast<const BitsOf<d>*>(span.data)[e]);
    });
    const WeightGrid<false> grid(law);
    if (!law.stochastic) return grid.nearest(x);
    return grid.stochastic(x, static_cast<uint32_t>(draw(kRoundingDraw, static_cast<uint64_t>(span.first + e)) >> 32));
  }

  LDPK_DEVICE void store(int64_t e, int64_t sample) const {
    if (span.dtype == kIntegers) {
      reinterpret_cast<int64_t*>(span.out)[e] = sample;
      return;
    }
    const double x = static_cast<double>(sample) / law.scale;
    with_dtype(span, [&](auto dtype) {
      constexpr Dtype d = decltype(dtype)::value;
      reinterpret_cast<BitsOf<d>*>(span.data)[e] = rounded_bits<d>(x);
    });
  }
};

// Chunks are longer only where there are more than `blocks` of the shortest.
template <class Cipher>
int32_t cldp_chunk(const Span* spans, int64_t count, int64_t blocks) {
  return chunk_for(spans, count, blocks, CldpBlock<Cipher>::at_once, kCldpChunk / CldpBlock<Cipher>::at_once);
}

template <class Cipher>
__global__ void __launch_bounds__(kCldpThreads, 8) ordinal_cldp_kernel(const __grid_constant__ CldpPlan plan) {
  __shared__ CldpShared shared;
  using Block = CldpBlock<Cipher>;
  const int32_t c = blockIdx.x;
  const int s = plan.span_of(c);
  const Key key = load_key<Cipher>(plan.key);
  const int64_t before = int64_t{c - plan.first_chunk[s]} * plan.chunk;
  const Block block{plan.spans[s], plan.laws[s], key, before - lead(plan.spans[s])};
  shared.begin(threadIdx.x, block.law);
  __syncthreads();
#pragma unroll 1
  for (int from = threadIdx.x * Block::elements; from < plan.chunk; from += Block::at_once) block.begin(from, shared);
  __syncthreads();
  block.try_again(shared);
  __syncthreads();
  block.finish(threadIdx.x, shared);
}

}  // namespace ldpk
