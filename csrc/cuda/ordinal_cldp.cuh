// SPDX-License-Identifier: Apache-2.0
// Ordinal CLDP in CUDA. A thread takes the elements of one block of the keystreams: as many draws as leave few elements
// open are computed for all of them at once. Those few start anew, each with cipher blocks of its own, so that nothing
// but their numbers is kept: in a queue of the thread block, from which its threads take them, so that few warps are
// busy with all of them. All but the kernel is __host__ __device__ and runs on the host in tests/cuda.
#pragma once

#include "../mechanisms/cldp_weights.h"
#include "step.cuh"

namespace ldpk {

constexpr int kCldpThreads = 128;

using CldpPlan = Plan<OrdinalCldpLaw, 24>;
static_assert(sizeof(CldpPlan) <= kLargestPlan);

// The elements that are left, by their numbers in the thread block, in whatever order threads come.
struct CldpQueue {
  int32_t count;
  uint16_t elements[kCldpThreads * ChaCha20::block_words];

  LDPK_FN void push(uint16_t element) {
#if defined(__CUDA_ARCH__)
    elements[atomicAdd(&count, 1)] = element;
#else
    elements[count++] = element;
#endif
  }
};

// A thread block's elements begin `first` behind the span's.
template <class Cipher, class Word>
struct CldpBlock {
  static constexpr int elements = Cipher::block_words * 4 / sizeof(Word);  // of a thread

  const Span& span;
  const OrdinalCldpLaw& law;
  const Key& key;
  const int64_t first;

  LDPK_FN void begin(int thread, CldpQueue& queue) const {
    const int64_t start = first + thread * elements;
    if (start + elements <= 0 || start >= span.numel) return;
    const uint64_t block = static_cast<uint64_t>(span.first + start) / elements;
    Word open[elements], less[elements];
    const int count = draws_for(law, 5);
#pragma unroll 1
    for (int digit = 0; digit < count; ++digit) {
      Word words[elements];
      draws(digit, block, words);
      const Word threshold = static_cast<Word>(law.thresholds[digit]);
#pragma unroll
      for (int i = 0; i < elements; ++i) {
        if (digit == 0) open[i] = static_cast<Word>(law.lanes), less[i] = words[i] & static_cast<Word>(law.sign);
        compare_digit(open[i], less[i], words[i], threshold);
      }
    }
    const PlainSample<Word> plain(law);
#pragma unroll
    for (int i = 0; i < elements; ++i) {
      const int64_t e = start + i;
      int64_t sample;
      if (e < 0 || e >= span.numel) continue;
      if (plain(open[i], less[i], load(e), sample)) {
        store(e, sample);
      } else {
        queue.push(static_cast<uint16_t>(thread * elements + i));
      }
    }
  }

  // When all threads have begun.
  LDPK_FN void finish(int thread, const CldpQueue& queue) const {
#pragma unroll 1
    for (int i = thread; i < queue.count; i += kCldpThreads) alone(first + queue.elements[i]);
  }

 private:
  LDPK_FN void alone(int64_t e) const {
    const uint64_t element = static_cast<uint64_t>(span.first + e);
    const int64_t v = load(e);
    int64_t sample;
    auto walk = OrdinalCldp<Word>::attempt(0, law);
#pragma unroll 1
    while (!walk.step(draw(walk.draw, element), v, law, sample)) {
    }
    store(e, sample);
  }

  LDPK_FN void draws(uint32_t number, uint64_t block, Word (&out)[elements]) const {
    uint32_t words[Cipher::block_words];
    Cipher::block(key, number, 0, block, words);
#pragma unroll
    for (int i = 0; i < elements; ++i) {
      if constexpr (sizeof(Word) == 4) {
        out[i] = words[i];
      } else {
        out[i] = words[2 * i] | uint64_t{words[2 * i + 1]} << 32;
      }
    }
  }

  // The word is found by masks: nvcc makes local memory of a block that is indexed at run time.
  LDPK_FN Word draw(uint32_t number, uint64_t element) const {
    Word words[elements], found = 0;
    draws(number, element / elements, words);
#pragma unroll
    for (uint32_t i = 0; i < elements; ++i) {
      uint32_t mask = 0u - (i == element % elements);
      settle(mask);
      found |= words[i] & (static_cast<Word>(mask) | (sizeof(Word) == 8 ? static_cast<Word>(uint64_t{mask} << 32) : 0));
    }
    return found;
  }

  LDPK_FN int64_t load(int64_t e) const {
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
    const Word word = draw(kRoundingDraw, static_cast<uint64_t>(span.first + e));
    return grid.stochastic(x, static_cast<uint32_t>(word >> (8 * sizeof(Word) - 32)));
  }

  LDPK_FN void store(int64_t e, int64_t sample) const {
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

// run(block) for thread block c.
template <class Cipher, class Run>
LDPK_FN void with_cldp_block(const CldpPlan& plan, int32_t c, Run run) {
  const int s = plan.span_of(c);
  const Key key = load_key<Cipher>(plan.key);
  const auto with = [&](auto word) {
    using Block = CldpBlock<Cipher, decltype(word)>;
    const int64_t before = int64_t{c - plan.first_chunk[s]} * kCldpThreads * Block::elements;
    run(Block{plan.spans[s], plan.laws[s], key, before - lead(plan.spans[s])});
  };
  plan.laws[s].wide ? with(uint64_t{}) : with(uint32_t{});
}

// launch(plan, blocks) for as many launches as the spans need.
template <class Cipher, class Launch>
void for_cldp_plans(const Span* spans, const OrdinalCldpLaw* laws, int64_t count, const uint32_t* key, Launch launch) {
  CldpPlan plan;
  plan.key = key;
  const auto blocks_of = [](const Span& span, const OrdinalCldpLaw& law) {
    const int64_t elements = law.wide ? CldpBlock<Cipher, uint64_t>::elements : CldpBlock<Cipher, uint32_t>::elements;
    return divided_up(lead(span) + span.numel, kCldpThreads * elements);
  };
  for_plans(
      plan, spans, count, [&](int64_t i) -> const OrdinalCldpLaw& { return laws[i]; }, blocks_of,
      [&](const CldpPlan& filled, int32_t blocks, int64_t) {
        if (blocks > 0) launch(filled, blocks);
      });
}

#if defined(__CUDACC__)
template <class Cipher>
__global__ void __launch_bounds__(kCldpThreads) ordinal_cldp_kernel(const __grid_constant__ CldpPlan plan) {
  __shared__ CldpQueue queue;
  if (threadIdx.x == 0) queue.count = 0;
  __syncthreads();
  with_cldp_block<Cipher>(plan, blockIdx.x, [&](const auto& block) {
    block.begin(threadIdx.x, queue);
    __syncthreads();
    block.finish(threadIdx.x, queue);
  });
}
#endif

}  // namespace ldpk
