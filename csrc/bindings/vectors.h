// SPDX-License-Identifier: Apache-2.0
// Whole vectors: to integers of a grid, their noise, and the rotation.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "call.h"

namespace ldpk {

// Spans of weights to integers in their `out`; the exact sum of all squares, as (low, high) with low + 2^32 high. No
// key words for cutting towards zero.
inline std::pair<uint64_t, uint64_t> lattice_quantise(const py::array& spans, double scale,
                                                      const Table<uint32_t>& key_words, uint32_t stream,
                                                      const std::string& isa, int64_t threads) {
  const Kernels& kernels = kernels_named(isa);
  const Key key = key_words.size() ? key_of(key_words) : Key{};
  const Span* s = records<Span>(spans, "spans");
  const int64_t count = spans.size();
  std::atomic<uint64_t> low{0}, high{0};
  const Unlocked unlocked;
  for_chunks(s, count, kTask, threads, [&](int64_t i, int64_t begin, int64_t end) {
    const Squares part = kernels.quantise(s[i], scale, key.size ? &key : nullptr, stream, begin, end);
    low += part.low;
    high += part.high;
  });
  return {low, high};
}

// Integers at the spans' `data`, with noise, to their `out`: modulo 2^bits as uint32, or with 0 bits times `unit`.
inline void lattice_noise_integers(const py::array& spans, const Table<uint32_t>& high, const Table<uint64_t>& low,
                                   const Table<uint32_t>& guide, int32_t shift, const Table<uint32_t>& key_words,
                                   int32_t bits, double unit, const std::string& isa, int64_t threads) {
  if (high.size() < 1 || high.size() != low.size() || guide.size() != 1024 || high.data()[high.size() - 1] != 1u << 24)
    throw std::invalid_argument("a table of another shape");
  if (shift > 0 && high.size() > 1 << 12) throw std::invalid_argument("a table of too many entries for a shift");
  if (shift < 0 || shift > 16 || bits < 0 || bits > 32) throw std::invalid_argument("shift or bits");
  for (int64_t i = 0; i < guide.size(); ++i) {
    if (guide.data()[i] >= high.size()) throw std::invalid_argument("a guide beyond its table");
  }
  const Kernels& kernels = kernels_named(isa);
  const Key key = key_of(key_words);
  const NoiseTable table{high.data(), low.data(), guide.data(), shift};
  const LatticeOut to{bits == 0 ? 0u : 0xffffffffu >> (32 - bits), unit};
  const Span* s = records<Span>(spans, "spans");
  const int64_t count = spans.size();
  const Unlocked unlocked;
  for_chunks(s, count, kTask, threads,
             [&](int64_t i, int64_t begin, int64_t end) { kernels.noise_integers(table, key, s[i], to, begin, end); });
}

// The sum of products of weights with the normals of their elements: stretches of a span in order, spans in order.
inline double normal_product(const py::array& spans, const Table<uint32_t>& key_words, uint32_t stream,
                             const std::string& isa, int64_t threads) {
  const Kernels& kernels = kernels_named(isa);
  const Key key = key_of(key_words);
  const Span* s = records<Span>(spans, "spans");
  const int64_t count = spans.size();
  const Unlocked unlocked;
  std::vector<std::vector<double>> parts(count);
  for (int64_t i = 0; i < count; ++i) parts[i].resize(divided_up(s[i].numel, kStretch));
  for_chunks(s, count, kStretch, threads, [&](int64_t i, int64_t begin, int64_t end) {
    parts[i][begin / kStretch] = kernels.normal_product(s[i], key, stream, begin, end);
  });
  const DefaultFloatEnvironment environment;
  double total = 0;
  for (const std::vector<double>& part : parts) total += std::accumulate(part.begin(), part.end(), 0.0);
  return total;
}

// (g + along x) factor for weights x and the normals g of their elements, to the spans' `out`: fp64 for fp64, else
// fp32.
inline void moved_normals(const py::array& spans, const Table<uint32_t>& key_words, uint32_t stream, double along,
                          double factor, const std::string& isa, int64_t threads) {
  const Kernels& kernels = kernels_named(isa);
  const Key key = key_of(key_words);
  const Span* s = records<Span>(spans, "spans");
  const int64_t count = spans.size();
  const Unlocked unlocked;
  for_chunks(s, count, kTask, threads, [&](int64_t i, int64_t begin, int64_t end) {
    kernels.moved_normals(s[i], key, stream, along, factor, begin, end);
  });
}

// The Walsh-Hadamard transform of a power of two of numbers in place, with signs from keystream 0 of the key.
inline void rotate(Table<float> x, const Table<uint32_t>& key_words, bool inverse, const std::string& isa,
                   int64_t threads) {
  const int64_t n = x.size();
  if (n < 1 || (n & (n - 1)) != 0) throw std::invalid_argument("a rotation is of a power of two of numbers");
  const Kernels& kernels = kernels_named(isa);
  const Key key = key_of(key_words);
  const int64_t block = block_words(key);
  float* data = x.mutable_data();
  const Unlocked unlocked;
  const int64_t blocks = divided_up(divided_up(n, 32), block);
  const std::unique_ptr<uint32_t[]> signs(new uint32_t[blocks * block]);
  int levels = 0;
  while (int64_t{1} << levels < n) ++levels;
  const float root_half = levels % 2 ? 0x1.6a09e6p-1f : 1.0f;
  const Rotation rotation{data, signs.get(), levels, !inverse, std::ldexp(root_half, -(levels / 2))};
  // After the signs, passes over memory: one up to 2^16 numbers, two up to 2^24, three up to 2^32.
  constexpr int64_t blocks_a_task = 1 << 10;
  int later = static_cast<int>(divided_up(std::max(levels - kLargeBlockLevels, 0), kColumnLevels));
  std::vector<int> starts{0, later == 0 ? levels : std::max(kBlockLevels, levels - later * kColumnLevels)};
  for (; later > 0; --later)
    starts.push_back(starts.back() + static_cast<int>(divided_up(levels - starts.back(), later)));
  std::vector<int64_t> tasks{divided_up(blocks, blocks_a_task), n >> starts[1]};
  for (size_t i = 1; i + 1 < starts.size(); ++i) tasks.push_back((n >> (starts[i + 1] - starts[i])) / kStrip);
  // Of the heap: a thread's own stack is new memory in every call, and 36 pages of it cost 50 microseconds.
  struct alignas(64) Line {
    float numbers[16];
  };
  constexpr int64_t lines = kRotationBuffer / 16;
  const std::unique_ptr<Line[]> buffers(levels > kBlockLevels ? new Line[threads * lines] : nullptr);
  parallel_passes(tasks, threads, [&](size_t pass, int64_t task, int64_t thread) {
    float* buffer = buffers ? buffers[thread * lines].numbers : nullptr;
    if (pass > 0) return kernels.rotate_task(rotation, starts[pass - 1], starts[pass] - starts[pass - 1], task, buffer);
    const int64_t first = task * blocks_a_task;
    kernels.keystream(key, 0, first, std::min(blocks_a_task, blocks - first), signs.get() + first * block);
  });
}

// x through the reflections of k (k + 1) / 2 - 1 normals, in place; `back` undoes them.
inline void reflect(Table<double> x, const Table<double>& normals, bool back, const std::string& isa) {
  const int64_t k = x.size();
  if (k < 1 || normals.size() != k * (k + 1) / 2 - 1) throw std::invalid_argument("normals of another size");
  const Kernels& kernels = kernels_named(isa);
  double* data = x.mutable_data();
  const double* g = normals.data();
  const Unlocked unlocked;
  const DefaultFloatEnvironment environment;
  kernels.reflect(g, k, back, data);
}

inline void bind_vectors(py::module_& m) {
  m.def("lattice_quantise", lattice_quantise);
  m.def("lattice_noise", lattice_noise_integers);
  m.def("normal_product", normal_product);
  m.def("moved_normals", moved_normals);
  m.def("rotate", rotate, py::arg().noconvert(), py::arg(), py::arg(), py::arg(), py::arg());
  m.def("reflect", reflect, py::arg().noconvert(), py::arg().noconvert(), py::arg(), py::arg());
}

}  // namespace ldpk
