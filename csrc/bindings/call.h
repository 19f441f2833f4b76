// SPDX-License-Identifier: Apache-2.0
// What every call from Python needs: the machine's kernels by their names, a key, and the spans' chunks for threads.
#pragma once

#include <pybind11/stl.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "../chacha.h"
#include "../cpu/aes_unit.h"
#include "../cpu/detect.h"
#include "../cpu/dispatch.h"
#include "../cpu/parallel.h"
#include "../philox.h"
#include "../tables.h"
#include "../unlocked.h"

namespace ldpk {

using Bytes = py::array_t<uint8_t, py::array::c_style>;

// The best first. Asked once: CPUID is slow under a hypervisor.
inline const std::vector<const Kernels*>& available_kernels() {
  static const std::vector<const Kernels*> available = [] {
    std::vector<const Kernels*> found;
#if defined(__x86_64__)
    const X86 machine = this_x86();
    if (machine.avx512()) found.push_back(&kAvx512Kernels);
    if (machine.avx2()) found.push_back(&kAvx2Kernels);
#elif defined(__aarch64__)
    found.push_back(&kNeonKernels);
#endif
    found.push_back(&kScalarKernels);
    return found;
  }();
  return available;
}

inline const Kernels& kernels_named(const std::string& name) {
  for (const Kernels* k : available_kernels()) {
    if (name.empty() || name == k->name) return *k;
  }
  throw std::invalid_argument("this machine has no '" + name + "' kernels");
}

// A key of the words that are at `words`, and AES's schedule.
inline Key key_of(const void* words, int64_t size) {
  if (size != Philox::key_words && size != Aes128::key_words && size != ChaCha20::key_words)
    throw std::invalid_argument("a key has 2, 4 or 8 words");
  static_assert(std::endian::native == std::endian::little);
  Key key{};
  key.size = static_cast<int32_t>(size);
  memcpy(key.words, words, size * 4);
  if (size == Aes128::key_words) aes_units().front()->expand(key.words);
  return key;
}

inline int block_words(const Key& key) {
  return key.size == ChaCha20::key_words ? ChaCha20::block_words : Philox::block_words;
}

inline Key key_of(const Table<uint32_t>& words) { return key_of(words.data(), words.size()); }

// A table of words, or the same as bytes, which are made in half the time.
inline Key key_of(const py::object& words) {
  if (!PyBytes_CheckExact(words.ptr())) return key_of(words.cast<Table<uint32_t>>());
  const std::string_view bytes = words.cast<std::string_view>();
  if (bytes.size() % 4 != 0) throw std::invalid_argument("a key has 8, 16 or 32 bytes");
  return key_of(bytes.data(), static_cast<int64_t>(bytes.size() / 4));
}

// Elements a task: a multiple of every group, and small enough for the second-level cache.
constexpr int64_t kTask = int64_t{1} << 16;

// task(span, begin, end) over all chunks of all spans.
template <class Task>
void for_chunks(const Span* spans, int64_t count, int64_t chunk, int64_t threads, Task task) {
  std::vector<int64_t> first_task(count + 1, 0);
  for (int64_t s = 0; s < count; ++s) first_task[s + 1] = first_task[s] + divided_up(spans[s].numel, chunk);
  parallel_for(first_task[count], threads, [&](int64_t t) {
    const int64_t s = std::upper_bound(first_task.begin(), first_task.end(), t) - first_task.begin() - 1;
    const int64_t begin = (t - first_task[s]) * chunk;
    task(s, begin, std::min(begin + chunk, spans[s].numel));
  });
}

}  // namespace ldpk
