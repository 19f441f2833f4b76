// SPDX-License-Identifier: Apache-2.0
// Masks of a secure sum.
#pragma once

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "call.h"

namespace ldpk {

// Numbers of 16 or 32 bits, and for each key its keystream added to them or taken from them; the first number is
// element `first` of the keystreams.
inline void add_masks(py::array numbers, const std::vector<py::object>& key_words, const std::vector<bool>& minus,
                      uint32_t stream, uint64_t first, const std::string& isa, int64_t threads) {
  const bool narrow = numbers.itemsize() == 2;
  if (numbers.dtype().kind() != 'u' || (!narrow && numbers.itemsize() != 4))
    throw std::invalid_argument("numbers must be uint16 or uint32");
  if (!(numbers.flags() & py::array::c_style)) throw std::invalid_argument("numbers must be contiguous");
  if (key_words.size() != minus.size()) throw std::invalid_argument("keys and signs must be as many");
  std::vector<Key> keys;
  for (const py::object& words : key_words) keys.push_back(key_of(words));
  const std::unique_ptr<bool[]> signs(new bool[minus.size()]);
  std::copy(minus.begin(), minus.end(), signs.get());
  const Kernels& kernels = kernels_named(isa);
  const Span all{0, 0, numbers.size(), 0, 0};
  const Masks masks{numbers.mutable_data(),
                    narrow ? 16 : 32,
                    keys.data(),
                    signs.get(),
                    static_cast<int64_t>(keys.size()),
                    stream,
                    first};
  const Unlocked unlocked;
  for_chunks(&all, 1, kTask, threads,
             [&](int64_t, int64_t begin, int64_t end) { kernels.add_masks(masks, begin, end); });
}

inline void bind_masks(py::module_& m) {
  m.def("add_masks", add_masks, py::arg().noconvert(), py::arg(), py::arg(), py::arg(), py::arg(), py::arg(),
        py::arg());
}

}  // namespace ldpk
