// SPDX-License-Identifier: Apache-2.0
// What a server does with reports: digests of their bytes, counters of bits and of bytes.
#pragma once

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "../cpu/tally.h"
#include "../crc32c.h"
#include "call.h"

namespace ldpk {

inline void tally_add(Tally& tally, const std::vector<Bytes>& reports, int64_t threads) {
  std::vector<const uint8_t*> pointers;
  for (const Bytes& report : reports) {
    if (report.size() != tally.bytes()) throw std::invalid_argument("a report of another size");
    pointers.push_back(report.data());
  }
  const Unlocked unlocked;
  tally.add(pointers, threads);
}

template <class Float>
void tally_decode(const Tally& tally, int64_t first, double offset, double step, Table<Float> out, int64_t threads) {
  if (first % 8 || first < 0 || (first + out.size() + 7) / 8 > tally.bytes())
    throw std::invalid_argument("elements outside the tally");
  Float* p = out.mutable_data();
  const int64_t n = out.size();
  const Unlocked unlocked;
  tally.decode(first, n, offset, step, p, threads);
}

inline Bytes tally_planes(const Tally& tally) {
  const auto planes = [&] {
    const Unlocked unlocked;
    return tally.planes();
  }();
  Bytes out(std::vector<py::ssize_t>{static_cast<int64_t>(planes.size()), tally.bytes()});
  uint8_t* to = out.mutable_data();
  for (const auto& plane : planes) to = std::copy(plane.begin(), plane.end(), to);
  return out;
}

inline void tally_restore(Tally& tally, int64_t count, const Bytes& planes) {
  if (planes.ndim() != 2 || planes.shape(1) != tally.bytes()) throw std::invalid_argument("planes of another size");
  const uint8_t* data = planes.data();
  const int64_t n = planes.shape(0);
  const Unlocked unlocked;
  tally.restore(count, data, n);
}

inline void tally_merge(Tally& into, const Tally& from) {
  if (into.bytes() != from.bytes()) throw std::invalid_argument("a tally of another size");
  const Unlocked unlocked;
  into.merge(from);
}

inline int64_t tally_count(const Tally& tally) {
  const Unlocked unlocked;
  return tally.count();
}

inline uint32_t crc32c(const py::buffer& data, const std::string& way) {
  const py::buffer_info bytes = data.request();
  if (bytes.itemsize != 1 || bytes.ndim != 1 || (bytes.size > 1 && bytes.strides[0] != 1))
    throw std::invalid_argument("a digest is of contiguous bytes");
  const auto* p = static_cast<const uint8_t*>(bytes.ptr);
  const Unlocked unlocked;
  if (way == "table") return Crc32c::by_table(p, bytes.size);
#if defined(__x86_64__) || defined(__ARM_FEATURE_CRC32)
  if (way == "instruction" && Crc32c::has_instruction()) return Crc32c::by_instruction(p, bytes.size);
#endif
  return Crc32c::of(p, bytes.size);
}

// Of each upload, whether it is `size` bytes, begins with `head` and ends with its own digest, and has none of the bits
// `unused` set, which are of the bytes `at` after the head. Bytes that others may change are not looked at.
inline std::vector<bool> uploads_like(const py::tuple& uploads, const std::string_view head, size_t size,
                                      const Table<int64_t>& at, const Table<uint8_t>& unused, int64_t threads) {
  constexpr uint32_t of_whole = 0x48674bc7;  // the CRC-32C of anything that its own follows
  if (size < head.size() + 4 || at.size() != unused.size()) throw std::invalid_argument("uploads of another size");
  for (int64_t i = 0; i < at.size(); ++i) {
    if (at.data()[i] < 0 || at.data()[i] >= static_cast<int64_t>(size - head.size() - 4))
      throw std::invalid_argument("a byte outside the uploads");
  }
  struct One {
    size_t number;
    const uint8_t* data;
    bool whole;
  };
  std::vector<One> alike;
  const size_t n = uploads.size();
  for (size_t i = 0; i < n; ++i) {
    PyObject* one = PyTuple_GET_ITEM(uploads.ptr(), i);
    if (!PyBytes_CheckExact(one) || static_cast<size_t>(PyBytes_GET_SIZE(one)) != size) continue;
    const char* data = PyBytes_AS_STRING(one);
    if (memcmp(data, head.data(), head.size()) != 0) continue;
    alike.push_back({i, reinterpret_cast<const uint8_t*>(data), false});
  }
  const int64_t* places = at.data();
  const uint8_t* masks = unused.data();
  const int64_t masked = at.size();
  {
    const Unlocked unlocked;
    parallel_for(static_cast<int64_t>(alike.size()), threads, [&](int64_t i) {
      One& one = alike[i];
      const uint8_t* payload = one.data + head.size();
      bool clean = true;
      for (int64_t k = 0; k < masked; ++k) clean &= (payload[places[k]] & masks[k]) == 0;
      one.whole = clean && Crc32c::of(one.data, size) == of_whole;
    });
  }
  std::vector<bool> out(n);
  for (const One& one : alike) out[one.number] = one.whole;
  return out;
}

// Adds one-byte reports to counters. A chunk is summed in 16 bits, which 257 reports cannot overflow.
template <class Counter>
void add_bytes(Table<Counter> counters, const std::vector<Bytes>& reports, int64_t threads) {
  constexpr int64_t chunk = 1 << 13;
  const int64_t n = counters.size();
  std::vector<const uint8_t*> pointers;
  for (const Bytes& report : reports) {
    if (report.size() != n) throw std::invalid_argument("a report of another size");
    pointers.push_back(report.data());
  }
  Counter* sums = counters.mutable_data();
  const Unlocked unlocked;
  parallel_for((n + chunk - 1) / chunk, threads, [&](int64_t t) {
    const int64_t begin = t * chunk, size = std::min(chunk, n - begin);
    for (size_t first = 0; first < pointers.size(); first += 257) {
      uint16_t partial[chunk] = {};
      for (size_t i = first; i < std::min(first + 257, pointers.size()); ++i) {
        for (int64_t e = 0; e < size; ++e) partial[e] += pointers[i][begin + e];
      }
      for (int64_t e = 0; e < size; ++e) sums[begin + e] += partial[e];
    }
  });
}

inline void bind_reports(py::module_& m) {
  m.def("crc32c", crc32c, py::arg("data"), py::arg("way") = "fastest");
  m.def("uploads_like", uploads_like);
  m.def("add_bytes", add_bytes<uint32_t>, py::arg().noconvert(), py::arg(), py::arg());
  m.def("add_bytes", add_bytes<uint64_t>, py::arg().noconvert(), py::arg(), py::arg());

  py::class_<Tally>(m, "Tally")
      .def(py::init(
          [](int64_t bytes, const std::string& isa) { return std::make_unique<Tally>(bytes, kernels_named(isa)); }))
      .def_property_readonly("count", tally_count)
      .def_property_readonly("bytes", &Tally::bytes)
      .def("add", tally_add)
      .def("merge", tally_merge)
      .def("planes", tally_planes)
      .def("restore", tally_restore)
      .def("decode_f32", tally_decode<float>)
      .def("decode_f64", tally_decode<double>);
}

}  // namespace ldpk
