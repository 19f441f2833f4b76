// SPDX-License-Identifier: Apache-2.0
// The sum of one-bit reports: log2(n + 1) bits a weight, in planes (bit_counter.h).
#pragma once

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "bit_counter.h"
#include "dispatch.h"
#include "parallel.h"

namespace ldpk {

struct Freed {
  void operator()(uint8_t* memory) const { std::free(memory); }
};
using Zeros = std::unique_ptr<uint8_t[], Freed>;

// Where there are many, in large pages: for each page of 4 kB the system takes longer than a count of 15 reports in it.
inline Zeros zeros(size_t n) {
  constexpr size_t large = size_t{1} << 21;
  const size_t unit = n >= 2 * large ? large : kPlanePadding;
  const size_t whole = std::max(n + unit - 1, unit) / unit * unit;
  Zeros memory(static_cast<uint8_t*>(std::aligned_alloc(unit, whole)));
  if (!memory) throw std::bad_alloc();
#if defined(__linux__)
  if (unit == large) madvise(memory.get(), whole, MADV_HUGEPAGE);  // a wish
#endif
  memset(memory.get(), 0, n);
  return memory;
}

// Any threads may call any of it at once: each call is done as a whole. Who holds Python's lock must give it up first.
class Tally {
 public:
  Tally(int64_t bytes, const Kernels& kernels) : bytes_(bytes), kernels_(kernels) {
    if (bytes < 0) throw std::invalid_argument("a report of fewer than no bytes");
  }

  // Each report has `bytes` bytes, bit i of byte b being element 8 b + i.
  void add(const std::vector<const uint8_t*>& reports, int64_t threads) {
    const std::scoped_lock lock(mutex_);
    const int64_t count = sum(count_, static_cast<int64_t>(reports.size()));
    // The bytes past the last whole register, of every report, in padded copies.
    const int64_t whole = bytes_ / kPlanePadding * kPlanePadding;
    std::vector<uint8_t> ends(reports.size() * kPlanePadding);
    std::vector<const uint8_t*> end_pointers;
    for (size_t i = 0; i < reports.size(); ++i) {
      uint8_t* end = &ends[i * kPlanePadding];
      memcpy(end, reports[i] + whole, bytes_ - whole);
      end_pointers.push_back(end);
    }
    reserve(count);
    std::vector<uint8_t*> plane_ends;
    for (uint8_t* plane : planes_) plane_ends.push_back(plane + whole);
    parallel_for((whole + kTileBytes - 1) / kTileBytes, threads, [&](int64_t t) {
      const int64_t begin = t * kTileBytes;
      add_range(reports, planes_, begin, begin + kTileBytes < whole ? begin + kTileBytes : whole);
    });
    if (whole < bytes_) add_range(end_pointers, plane_ends, 0, kPlanePadding);
    count_ = count;
  }

  void merge(const Tally& other) {
    if (this == &other) return merge(copy());
    const std::scoped_lock lock(mutex_, other.mutex_);
    const int64_t count = sum(count_, other.count_);
    reserve(count);
    for (size_t p = 0; p < other.planes_.size(); ++p) {
      // Bits of weight 2^p are a report for the planes from p on.
      const uint8_t* report = other.planes_[p];
      kernels_.count_bits(1, &report, &planes_[p], static_cast<int>(planes_.size() - p), 0, padded());
    }
    count_ = count;
  }

  // The counts of elements [first, first + n), decoded: offset + step * count.
  template <class Float>
  void decode(int64_t first, int64_t n, double offset, double step, Float* out, int64_t threads) const {
    constexpr int64_t chunk = 1 << 16;
    const std::scoped_lock lock(mutex_);
    const std::vector<const uint8_t*> planes(planes_.begin(), planes_.end());
    parallel_for((n + chunk - 1) / chunk, threads, [&](int64_t t) {
      const int64_t begin = t * chunk, end = begin + chunk < n ? begin + chunk : n;
      const auto run = [&] {
        if constexpr (sizeof(Float) == 4)
          return kernels_.decode_f32;
        else
          return kernels_.decode_f64;
      }();
      run(planes.data(), static_cast<int>(planes.size()), (first + begin) / 8, end - begin, offset, step, out + begin);
    });
  }

  int64_t bytes() const { return bytes_; }
  int64_t count() const {
    const std::scoped_lock lock(mutex_);
    return count_;
  }
  // The lowest bits first.
  std::vector<std::vector<uint8_t>> planes() const {
    const std::scoped_lock lock(mutex_);
    std::vector<std::vector<uint8_t>> out;
    for (int64_t p = 0; p < planes_for(count_); ++p) out.emplace_back(planes_[p], planes_[p] + bytes_);
    return out;
  }
  // What planes() gave at that count: n planes, whose counts are at most `count`.
  void restore(int64_t count, const uint8_t* planes, int64_t n) {
    if (count < 0 || n != planes_for(count)) {
      throw std::invalid_argument(std::to_string(n) + " planes for a count of " + std::to_string(count));
    }
    Tally restored(bytes_, kernels_);
    restored.reserve(count);
    for (int64_t p = 0; p < n && bytes_ > 0; ++p) memcpy(restored.planes_[p], planes + p * bytes_, bytes_);
    const std::scoped_lock lock(mutex_);
    count_ = count;
    planes_ = std::move(restored.planes_);
    memory_ = std::move(restored.memory_);
  }

 private:
  static constexpr int64_t kTileBytes = 16384;  // of a plane: a tile of all planes stays in the first-level cache

  int64_t padded() const { return (bytes_ + kPlanePadding - 1) / kPlanePadding * kPlanePadding; }

  Tally(const Tally& other, const std::scoped_lock<std::mutex>&)
      : bytes_(other.bytes_), kernels_(other.kernels_), count_(other.count_) {
    add_planes(other.planes_.size());
    for (size_t p = 0; p < planes_.size(); ++p) memcpy(planes_[p], other.planes_[p], padded());
  }
  Tally copy() const {
    const std::scoped_lock lock(mutex_);
    return {*this, lock};
  }

  static int64_t sum(int64_t a, int64_t b) {
    if (b > std::numeric_limits<int64_t>::max() - a) throw std::overflow_error("more than 2^63 - 1 reports");
    return a + b;
  }

  // Enough for every count up to n, so that no carry leaves the last one.
  static int64_t planes_for(int64_t n) { return std::bit_width(static_cast<uint64_t>(n)); }
  void reserve(int64_t n) {
    if (static_cast<int64_t>(planes_.size()) < planes_for(n)) add_planes(planes_for(n) - planes_.size());
  }
  void add_planes(size_t n) {
    planes_.reserve(planes_.size() + n);
    memory_.push_back(zeros(n * padded()));
    for (size_t p = 0; p < n; ++p) planes_.push_back(memory_.back().get() + p * padded());
  }

  void add_range(const std::vector<const uint8_t*>& reports, const std::vector<uint8_t*>& planes, int64_t begin,
                 int64_t end) const {
    for (size_t i = 0; i < reports.size();) {
      int bits = 4;
      while (i + (size_t{1} << bits) - 1 > reports.size()) --bits;
      kernels_.count_bits(bits, &reports[i], planes.data(), static_cast<int>(planes.size()), begin, end);
      i += (size_t{1} << bits) - 1;
    }
  }

  const int64_t bytes_;
  const Kernels& kernels_;
  mutable std::mutex mutex_;
  int64_t count_ = 0;
  std::vector<Zeros> memory_;
  std::vector<uint8_t*> planes_;  // in it
};

}  // namespace ldpk
