// SPDX-License-Identifier: Apache-2.0
// Majority votes: a column of votes in, its label out, and whether it is kept. One pass; each column is on its own.
#pragma once

#include <vector>

#include "dispatch.h"

namespace ldpk {

// Signed bytes count in the fast path: codes and counts stay below 128.
constexpr int64_t kFewBallots = 127;

// Columns [begin, end), in tiles as wide as a register. Every vote becomes a byte in a tile's table, which is compared
// with each class in turn. False if a vote names no class; what was written then is of no use.
template <class Lanes, class Int>
bool majority_of_few(const Ballots& b, int64_t begin, int64_t end) {
  constexpr int64_t width = Lanes::count < 4 ? 16 : 4 * Lanes::count;
  typedef int8_t Bytes __attribute__((vector_size(width)));
  using Unsigned = std::make_unsigned_t<Int>;
  Bytes codes[kFewBallots];
  const Int* votes = reinterpret_cast<const Int*>(b.votes);
  Int* labels = reinterpret_cast<Int*>(b.labels);
  Unsigned high = 0;
  Bytes wrong{};
  for (int64_t at = begin; at < end; at += width) {
    const int64_t n = end - at < width ? end - at : width;
    for (int64_t p = 0; p < b.parties; ++p) {
      const Int* row = votes + p * b.columns + at;
      Int last[width] = {};
      if (n < width) {
        memcpy(last, row, n * sizeof(Int));
        row = last;
      }
      int8_t narrow[width];
      Unsigned bits = 0;
      for (int64_t j = 0; j < width; ++j) {
        bits |= static_cast<Unsigned>(row[j]);
        narrow[j] = static_cast<int8_t>(row[j]);
      }
      high |= bits;
      memcpy(&codes[p], narrow, width);
      wrong |= codes[p] >= static_cast<int8_t>(b.classes);
    }
    Bytes first{}, second{}, label{};
    for (int c = 0; c < b.classes; ++c) {
      Bytes count{};
      for (int64_t p = 0; p < b.parties; ++p) count -= codes[p] == static_cast<int8_t>(c);  // true is -1
      const Bytes above = count > first;
      const Bytes lesser = above ? first : count;
      second = lesser > second ? lesser : second;
      first = above ? count : first;
      label = above ? Bytes{} + static_cast<int8_t>(c) : label;
    }
    const Bytes keep = -((first - second) > 1);
    int8_t chosen[width];
    memcpy(chosen, &label, width);
    memcpy(b.keep + at, &keep, n);
    if (n == width) {
      for (int64_t j = 0; j < width; ++j) labels[at + j] = chosen[j];
    } else {
      for (int64_t j = 0; j < n; ++j) labels[at + j] = chosen[j];
    }
  }
  int8_t some[width];
  memcpy(some, &wrong, width);
  bool ok = high < 128;
  for (int8_t w : some) ok = ok && w == 0;
  return ok;
}

// The same for any number of parties and classes.
template <class Lanes, class Int>
bool majority_of_many(const Ballots& b, int64_t begin, int64_t end) {
  const Int* votes = reinterpret_cast<const Int*>(b.votes);
  Int* labels = reinterpret_cast<Int*>(b.labels);
  std::vector<int64_t> counts(b.classes);
  for (int64_t at = begin; at < end; ++at) {
    for (int64_t& count : counts) count = 0;
    for (int64_t p = 0; p < b.parties; ++p) {
      const auto vote = static_cast<std::make_unsigned_t<Int>>(votes[p * b.columns + at]);
      if (vote >= static_cast<uint64_t>(b.classes)) return false;
      ++counts[vote];
    }
    int64_t first = 0, second = 0, label = 0;
    for (int64_t c = 0; c < b.classes; ++c) {
      if (counts[c] > first) {
        second = first;
        first = counts[c];
        label = c;
      } else if (counts[c] > second) {
        second = counts[c];
      }
    }
    labels[at] = static_cast<Int>(label);
    b.keep[at] = first - second > 1;
  }
  return true;
}

template <class Lanes>
bool majority(const Ballots& b, int64_t begin, int64_t end) {
  const bool few = b.parties <= kFewBallots && b.classes <= kFewBallots;
  const auto run = [&]<class Int>(Int) {
    return (few ? majority_of_few<Lanes, Int> : majority_of_many<Lanes, Int>)(b, begin, end);
  };
  return b.bytes == 1 ? run(uint8_t{}) : b.bytes == 4 ? run(int32_t{}) : run(int64_t{});
}

}  // namespace ldpk
