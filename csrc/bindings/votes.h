// SPDX-License-Identifier: Apache-2.0
// Majority votes.
#pragma once

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>

#include "call.h"

namespace ldpk {

// Labels and keeps of votes [parties, columns]. False if a vote is none of the classes.
template <class Int>
bool majority_vote(const Table<Int>& votes, int64_t classes, Table<Int> labels, Table<bool> keep,
                   const std::string& isa, int64_t threads) {
  constexpr int64_t chunk = 1 << 14;
  if (votes.ndim() != 2 || labels.size() != votes.shape(1) || keep.size() != votes.shape(1))
    throw std::invalid_argument("votes are [parties, columns], labels and keeps [columns]");
  if (classes < 1) throw std::invalid_argument("no classes");
  const auto run_chunk = kernels_named(isa).majority;
  const int64_t n = votes.shape(1);
  const Ballots ballots{
      votes.data(), labels.mutable_data(), reinterpret_cast<uint8_t*>(keep.mutable_data()), votes.shape(0), n, classes,
      sizeof(Int)};
  std::atomic<bool> ok{true};
  const Unlocked unlocked;
  parallel_for((n + chunk - 1) / chunk, threads, [&](int64_t t) {
    if (!run_chunk(ballots, t * chunk, std::min((t + 1) * chunk, n))) ok = false;
  });
  return ok;
}

inline void bind_votes(py::module_& m) {
  const auto define = [&]<class Int>(Int) {
    m.def("majority_vote", majority_vote<Int>, py::arg().noconvert(), py::arg(), py::arg().noconvert(),
          py::arg().noconvert(), py::arg(), py::arg());
  };
  define(uint8_t{}), define(int32_t{}), define(int64_t{});
}

}  // namespace ldpk
