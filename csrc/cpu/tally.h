// SPDX-License-Identifier: Apache-2.0
// Adding one-bit reports. The counters are bit-sliced: plane p holds bit p of every weight's count, packed as the reports
// are, so adding a report touches about two bits of counter a weight and the whole state is log2(n + 1) bits a weight.
#pragma once

#include <cstring>
#include <vector>

#include "parallel.h"

namespace ldpk {

class Tally {
 public:
  explicit Tally(int64_t bytes) : bytes_(bytes), words_((bytes + 7) / 8) {}

  // Each report has `bytes` bytes, bit i of byte b being element 8 b + i.
  void add(const std::vector<const uint8_t*>& reports, int64_t threads) {
    reserve(count_ + static_cast<int64_t>(reports.size()));
    for_tiles(threads, [&](int64_t begin, int64_t words) {
      uint64_t sums[4][kTileWords];
      size_t i = 0;
      for (; i + 7 <= reports.size(); i += 7) {
        add_seven(&reports[i], begin, words, sums);
        for (int p = 0; p < 3; ++p) ripple(p, begin, words, sums[p]);
      }
      for (; i < reports.size(); ++i) {
        load(reports[i], begin, words, sums[0]);
        ripple(0, begin, words, sums[0]);
      }
    });
    count_ += reports.size();
  }

  void merge(const Tally& other, int64_t threads) {
    reserve(count_ + other.count_);
    for_tiles(threads, [&](int64_t begin, int64_t words) {
      uint64_t carry[kTileWords];
      for (size_t p = 0; p < other.planes_.size(); ++p) {
        memcpy(carry, &other.planes_[p][begin], words * 8);
        ripple(p, begin, words, carry);
      }
    });
    count_ += other.count_;
  }

  // The counts of elements [first, first + n), decoded: offset + step * count.
  template <class Float>
  void decode(int64_t first, int64_t n, double offset, double step, Float* out, int64_t threads) const {
    constexpr int64_t chunk = 1 << 16;
    parallel_for((n + chunk - 1) / chunk, threads, [&](int64_t t) {
      const int64_t begin = t * chunk, end = begin + chunk < n ? begin + chunk : n;
      for (int64_t i = begin; i < end; i += 8) {
        const int64_t byte = (first + i) / 8;
        int64_t counts[8] = {};
        for (size_t group = 0; group < planes_.size(); group += 8) {  // eight counts side by side, eight bits of each
          uint64_t bits = 0;
          for (size_t p = group; p < planes_.size() && p < group + 8; ++p) bits |= spread(byte_of(p, byte)) << (p - group);
          for (int e = 0; e < 8; ++e) counts[e] |= static_cast<int64_t>((bits >> (8 * e)) & 0xff) << group;
        }
        for (int e = 0; e < 8 && i + e < end; ++e) out[i + e] = static_cast<Float>(offset + step * static_cast<double>(counts[e]));
      }
    });
  }

  int64_t count() const { return count_; }
  int64_t bytes() const { return bytes_; }
  int64_t planes() const { return static_cast<int64_t>(planes_.size()); }
  const uint8_t* plane(int64_t p) const { return reinterpret_cast<const uint8_t*>(planes_[p].data()); }
  void restore(int64_t count, const uint8_t* planes, int64_t n) {
    count_ = count;
    planes_.assign(n, std::vector<uint64_t>(words_));
    for (int64_t p = 0; p < n; ++p) memcpy(planes_[p].data(), planes + p * bytes_, bytes_);
  }

 private:
  static constexpr int64_t kTileWords = 512;  // 4 KB a plane: a tile of all planes stays in the first-level cache

  template <class Work>
  void for_tiles(int64_t threads, Work work) {
    parallel_for((words_ + kTileWords - 1) / kTileWords, threads, [&](int64_t t) {
      const int64_t begin = t * kTileWords;
      work(begin, begin + kTileWords < words_ ? kTileWords : words_ - begin);
    });
  }

  // Planes enough for every count up to n, so that no carry leaves the last one.
  void reserve(int64_t n) {
    size_t planes = 0;
    while (planes < 63 && (int64_t{1} << planes) <= n) ++planes;
    while (planes_.size() < planes) planes_.emplace_back(words_);
  }

  void load(const uint8_t* report, int64_t begin, int64_t words, uint64_t* out) const {
    const int64_t left = bytes_ - begin * 8;
    if (left >= words * 8) {
      memcpy(out, report + begin * 8, words * 8);
    } else {
      out[words - 1] = 0;
      memcpy(out, report + begin * 8, left);
    }
  }

  // Seven bits a weight become a three-bit sum by four full adders.
  void add_seven(const uint8_t* const* reports, int64_t begin, int64_t words, uint64_t (*sums)[kTileWords]) const {
    uint64_t r[7][kTileWords];
    for (int i = 0; i < 7; ++i) load(reports[i], begin, words, r[i]);
    for (int64_t w = 0; w < words; ++w) {
      uint64_t ones = r[0][w], a = r[1][w], b = r[2][w], twos[3];
      const auto full_add = [](uint64_t& x, uint64_t y, uint64_t z) {
        const uint64_t u = x ^ y, carry = (x & y) | (u & z);
        x = u ^ z;
        return carry;
      };
      twos[0] = full_add(ones, a, b);
      twos[1] = full_add(ones, r[3][w], r[4][w]);
      twos[2] = full_add(ones, r[5][w], r[6][w]);
      sums[2][w] = full_add(twos[0], twos[1], twos[2]);
      sums[1][w] = twos[0];
      sums[0][w] = ones;
    }
  }

  // Adds a bit of weight 2^p to every count of the tile; `carry` is used up.
  void ripple(size_t p, int64_t begin, int64_t words, uint64_t* carry) {
    for (; p < planes_.size(); ++p) {
      uint64_t* plane = &planes_[p][begin];
      uint64_t left = 0;
      for (int64_t w = 0; w < words; ++w) {
        const uint64_t sum = plane[w] ^ carry[w];
        carry[w] &= plane[w];
        plane[w] = sum;
        left |= carry[w];
      }
      if (!left) return;
    }
  }

  uint64_t byte_of(size_t p, int64_t byte) const { return plane(p)[byte]; }

  // Bit i of a byte to bit 0 of byte i.
  static uint64_t spread(uint64_t b) {
    b = (b | b << 28) & 0x0000000f0000000full;
    b = (b | b << 14) & 0x0003000300030003ull;
    return (b | b << 7) & 0x0101010101010101ull;
  }

  int64_t bytes_;
  int64_t words_;
  int64_t count_ = 0;
  std::vector<std::vector<uint64_t>> planes_;
};

}  // namespace ldpk
