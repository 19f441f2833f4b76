// SPDX-License-Identifier: Apache-2.0
// Order statistics of finite numbers, exactly, without sorting: numbers are counted by the first 16 bits of their place
// in the order, those that share these bits with a wanted one are gathered, and among these few it is selected.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <vector>

#include "../dtype.h"
#include "parallel.h"

namespace ldpk {

constexpr int kBinBits = 16;  // sign, exponent and four bits of an fp64 number
constexpr int64_t kBins = int64_t{1} << kBinBits;

// A finite number's bin: bins are in the order of the numbers.
LDPK_FN uint32_t bin_of(double x) {
  const uint64_t bits = bit_cast<uint64_t>(x + 0.0);  // no negative zero
  const uint64_t order = bits ^ ((uint64_t{0} - (bits >> 63)) | uint64_t{1} << 63);
  return static_cast<uint32_t>(order >> (64 - kBinBits));
}

// see(x) for the finite elements [begin, end) of the spans' elements in a row.
template <class See>
void for_finite(const Span* spans, int64_t count, int64_t begin, int64_t end, See see) {
  for (int64_t s = 0, first = 0; s < count && first < end; first += spans[s++].numel) {
    const int64_t from = std::max<int64_t>(begin - first, 0), to = std::min(end - first, spans[s].numel);
    with_dtype(spans[s], [&](auto dtype) {
      const auto* data = reinterpret_cast<const BitsOf<dtype()>*>(spans[s].data);
      for (int64_t i = from; i < to; ++i) {
        const double x = Element<dtype()>::number(data[i]);
        if (x - x == 0) see(x);
      }
    });
  }
}

// The finite elements of these ranks, in the order of `ranks`; the least has rank 0.
inline std::vector<double> order_statistics(const Span* spans, int64_t count, const std::vector<int64_t>& ranks,
                                            int64_t threads) {
  int64_t total = 0;
  for (int64_t s = 0; s < count; ++s) total += spans[s].numel;
  const auto share = [&](int64_t t) { return total / threads * t + std::min(t, total % threads); };
  std::vector<std::vector<int64_t>> counts(threads);
  parallel_for(threads, threads, [&](int64_t t) {
    counts[t].resize(kBins);
    for_finite(spans, count, share(t), share(t + 1), [&](double x) { ++counts[t][bin_of(x)]; });
  });
  // The bins of the ranks, and how many numbers are in the bins before.
  std::vector<int64_t> bins(ranks.size()), before(ranks.size());
  for (size_t r = 0; r < ranks.size(); ++r) {
    int64_t bin = 0, seen = 0;
    for (; bin < kBins; ++bin) {
      int64_t here = 0;
      for (const auto& of_thread : counts) here += of_thread[bin];
      if (ranks[r] < seen + here) break;
      seen += here;
    }
    if (bin == kBins || ranks[r] < 0) throw std::invalid_argument("a rank that no finite number has");
    bins[r] = bin;
    before[r] = seen;
  }
  constexpr uint8_t nowhere = 255;
  if (ranks.size() >= nowhere) throw std::invalid_argument("too many ranks");
  std::vector<uint8_t> place(kBins, nowhere);
  for (size_t r = ranks.size(); r-- > 0;) place[bins[r]] = static_cast<uint8_t>(r);  // of ranks in one bin, the first
  std::vector<std::vector<std::vector<double>>> gathered(threads);
  parallel_for(threads, threads, [&](int64_t t) {
    gathered[t].resize(ranks.size());
    for_finite(spans, count, share(t), share(t + 1), [&](double x) {
      const uint8_t at = place[bin_of(x)];
      if (at != nowhere) gathered[t][at].push_back(x);
    });
  });
  std::vector<double> found(ranks.size());
  for (size_t r = 0; r < ranks.size(); ++r) {
    auto& numbers = gathered[0][place[bins[r]]];
    for (int64_t t = 1; t < threads; ++t) {
      auto& others = gathered[t][place[bins[r]]];
      numbers.insert(numbers.end(), others.begin(), others.end());
      others.clear();
    }
    const auto wanted = numbers.begin() + (ranks[r] - before[r]);
    std::nth_element(numbers.begin(), wanted, numbers.end());
    found[r] = *wanted;
  }
  return found;
}

}  // namespace ldpk
