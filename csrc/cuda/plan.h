// SPDX-License-Identifier: Apache-2.0
// One launch's work, as the kernel's parameter: plain C++, so that the tests can walk it on a machine without a GPU.
#pragma once

#include <stdexcept>

#include "../mechanisms/registry.h"

namespace ldpk {

constexpr int kLanes = 32;
constexpr int kWarps = 8;  // of a thread block

// Spans are cut where these blocks of the random stream begin: a whole block of either cipher, and whole vectors.
constexpr int kStreamUnit = 32;
// A chunk is the elements of a thread block: a multiple of what its threads take at once, at most 32 elements each.
constexpr int kChunkUnit = kWarps * kLanes * 32;

// A law with its numbers in both formats, so that no kernel converts.
struct PlanLaw {
  double center, slope, fallback;
  float center_f32, slope_f32, fallback_f32;
  int32_t k_lo, k_hi;
  uint64_t lower, upper;

  PlanLaw() = default;
  explicit PlanLaw(const TwoPointLaw& law)
      : center(law.center),
        slope(law.slope),
        fallback(law.fallback),
        center_f32(static_cast<float>(law.center)),
        slope_f32(static_cast<float>(law.slope)),
        fallback_f32(static_cast<float>(law.fallback)),
        k_lo(static_cast<int32_t>(law.k_lo)),
        k_hi(static_cast<int32_t>(law.k_hi)),
        lower(law.lower),
        upper(law.upper) {}
};

// What a kernel keeps of it.
template <class Float, class Bits>
struct Law {
  Float center, slope, fallback;
  int32_t k_lo, k_hi;
  Bits lower, upper;

  explicit LDPK_FN Law(const PlanLaw& law)
      : k_lo(law.k_lo), k_hi(law.k_hi), lower(static_cast<Bits>(law.lower)), upper(static_cast<Bits>(law.upper)) {
    if constexpr (sizeof(Float) == 8) {
      center = law.center, slope = law.slope, fallback = law.fallback;
    } else {
      center = law.center_f32, slope = law.slope_f32, fallback = law.fallback_f32;
    }
  }
};

// Chunk c of the launch belongs to the last span s with first_chunk[s] <= c. A span's chunks are counted from the
// stream unit in which it begins, `lead` elements before its first.
template <int capacity>
struct Plan {
  const uint32_t* key;
  int32_t chunk;
  int32_t count;
  int32_t first_chunk[capacity + 1];
  Span spans[capacity];
  PlanLaw laws[capacity];

  LDPK_FN int span_of(int32_t c) const {
    int low = 0, high = count;  // first_chunk[low] <= c < first_chunk[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (first_chunk[middle] <= c ? low : high) = middle;
    }
    return low;
  }
};

LDPK_FN int64_t lead(const Span& span) { return span.first % kStreamUnit; }

constexpr int kFewSpans = 8;  // a short parameter is a faster launch
constexpr int kManySpans = 256;
static_assert(sizeof(Plan<kManySpans>) <= 32764, "the most that CUDA passes by value");

// A block's start-up is small beside eight units; small work is cut finer, to reach every multiprocessor.
inline int32_t chunk_for(const Span* spans, int64_t count, int64_t blocks) {
  int64_t elements = 0;
  for (int64_t s = 0; s < count; ++s) elements += spans[s].numel;
  const int64_t units = elements / (blocks * kChunkUnit);
  return kChunkUnit * static_cast<int32_t>(units < 1 ? 1 : units > 8 ? 8 : units);
}

// launch(plan, chunks) for as many launches as the spans need.
template <int capacity, class Launch>
void for_plans(const Span* spans, const TwoPointLaw* laws, int64_t count, const uint32_t* key, int32_t chunk,
               Launch launch) {
  Plan<capacity> plan;
  plan.key = key;
  plan.chunk = chunk;
  for (int64_t start = 0; start < count; start += capacity) {
    plan.count = static_cast<int32_t>(count - start < capacity ? count - start : capacity);
    int64_t chunks = 0;
    for (int s = 0; s < plan.count; ++s) {
      plan.spans[s] = spans[start + s];
      plan.laws[s] = PlanLaw(laws[start + s]);
      plan.first_chunk[s] = static_cast<int32_t>(chunks);
      if (plan.spans[s].numel > 0) chunks += (lead(plan.spans[s]) + plan.spans[s].numel + chunk - 1) / chunk;
      if (chunks > INT32_MAX) throw std::invalid_argument("too many elements for one launch");
    }
    plan.first_chunk[plan.count] = static_cast<int32_t>(chunks);
    if (chunks > 0) launch(static_cast<const Plan<capacity>&>(plan), static_cast<int32_t>(chunks));
  }
}

}  // namespace ldpk
