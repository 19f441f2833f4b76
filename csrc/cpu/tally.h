// SPDX-License-Identifier: Apache-2.0
// The sum of one-bit reports: log2(n + 1) bits a weight, in planes (bit_counter.h).
#pragma once

#include <cstring>
#include <vector>

#include "bit_counter.h"
#include "dispatch.h"
#include "parallel.h"

namespace ldpk {

class Tally {
 public:
  Tally(int64_t bytes, const Kernels& kernels) : bytes_(bytes), kernels_(kernels) {}

  // Each report has `bytes` bytes, bit i of byte b being element 8 b + i.
  void add(std::vector<const uint8_t*> reports, int64_t threads) {
    reserve(count_ + static_cast<int64_t>(reports.size()));
    // The bytes past the last whole register, of every report, in padded copies.
    const int64_t whole = bytes_ / kPlanePadding * kPlanePadding;
    std::vector<uint8_t> ends(reports.size() * kPlanePadding);
    std::vector<const uint8_t*> end_pointers;
    for (size_t i = 0; i < reports.size(); ++i) {
      uint8_t* end = &ends[i * kPlanePadding];
      memcpy(end, reports[i] + whole, bytes_ - whole);
      end_pointers.push_back(end);
    }
    std::vector<uint8_t*> planes(planes_.size()), plane_ends(planes_.size());
    for (size_t p = 0; p < planes_.size(); ++p) {
      planes[p] = planes_[p].data();
      plane_ends[p] = planes[p] + whole;
    }
    parallel_for((whole + kTileBytes - 1) / kTileBytes, threads, [&](int64_t t) {
      const int64_t begin = t * kTileBytes;
      add_range(reports, planes, begin, begin + kTileBytes < whole ? begin + kTileBytes : whole);
    });
    if (whole < bytes_) add_range(end_pointers, plane_ends, 0, kPlanePadding);
    count_ += static_cast<int64_t>(reports.size());
  }

  void merge(const Tally& other) {
    reserve(count_ + other.count_);
    for (size_t p = 0; p < other.planes_.size(); ++p) {
      // Bits of weight 2^p are a report for the planes from p on.
      std::vector<uint8_t*> planes;
      for (size_t q = p; q < planes_.size(); ++q) planes.push_back(planes_[q].data());
      const uint8_t* report = other.planes_[p].data();
      kernels_.count_bits(1, &report, planes.data(), static_cast<int>(planes.size()), 0, padded());
    }
    count_ += other.count_;
  }

  // The counts of elements [first, first + n), decoded: offset + step * count.
  template <class Float>
  void decode(int64_t first, int64_t n, double offset, double step, Float* out, int64_t threads) const {
    constexpr int64_t chunk = 1 << 16;
    std::vector<const uint8_t*> planes;
    for (const auto& plane : planes_) planes.push_back(plane.data());
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

  int64_t count() const { return count_; }
  int64_t bytes() const { return bytes_; }
  int64_t planes() const { return static_cast<int64_t>(planes_.size()); }
  const uint8_t* plane(int64_t p) const { return planes_[p].data(); }
  void restore(int64_t count, const uint8_t* planes, int64_t n) {
    count_ = count;
    planes_.assign(n, std::vector<uint8_t>(padded()));
    for (int64_t p = 0; p < n; ++p) memcpy(planes_[p].data(), planes + p * bytes_, bytes_);
  }

 private:
  static constexpr int64_t kTileBytes = 16384;  // of a plane: a tile of all planes stays in the first-level cache

  int64_t padded() const { return (bytes_ + kPlanePadding - 1) / kPlanePadding * kPlanePadding; }

  // Planes enough for every count up to n, so that no carry leaves the last one.
  void reserve(int64_t n) {
    size_t planes = 0;
    while (planes < 63 && (int64_t{1} << planes) <= n) ++planes;
    while (planes_.size() < planes) planes_.emplace_back(padded());
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

  int64_t bytes_;
  const Kernels& kernels_;
  int64_t count_ = 0;
  std::vector<std::vector<uint8_t>> planes_;
};

}  // namespace ldpk
