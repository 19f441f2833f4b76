// SPDX-License-Identifier: Apache-2.0
// What both Python modules share: NumPy's tables of spans and laws, and mechanisms by their names.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <stdexcept>
#include <string>

#include "mechanisms/registry.h"

namespace ldpk {

namespace py = pybind11;

template <class T>
using Table = py::array_t<T, py::array::c_style>;

// NumPy's description of a record.
inline py::dtype dtype_of(std::span<const Field> fields) {
  py::list names, formats, offsets;
  int64_t size = 0;
  for (const Field& field : fields) {
    const py::dtype one = field.kind == 'V' ? dtype_of(field.record) : py::dtype(std::string(1, field.kind) + "8");
    names.append(field.name);
    if (field.count > 1) {
      formats.append(py::make_tuple(one, py::make_tuple(field.count)));
    } else {
      formats.append(one);
    }
    offsets.append(field.offset);
    size = field.offset + field.count * static_cast<int64_t>(one.itemsize());
  }
  return py::dtype(names, formats, offsets, size);
}

// The same for T, made once in a module. It is never freed: the interpreter may be gone before it is.
template <class T>
const py::dtype& dtype_of() {
  static const auto* dtype = new py::dtype(dtype_of(kFields<T>));
  return *dtype;
}

// The records of a table that Python made of this module's dtype.
template <class T>
const T* records(const py::array& table, const char* what) {
  if (!table.dtype().is(dtype_of<T>()) && !table.dtype().equal(dtype_of<T>())) {
    throw std::invalid_argument(std::string(what) + " have the dtype " + std::string(py::str(table.dtype())) +
                                " instead of " + std::string(py::str(dtype_of<T>())));
  }
  if (table.ndim() != 1 || !(table.flags() & py::array::c_style)) {
    throw std::invalid_argument(std::string(what) + " are a table in one piece");
  }
  return static_cast<const T*>(table.data());
}

// f(action, number) for the kernel of these names among those that `Offered` has; the number counts the
// registry's actions.
template <class Offered, class F>
void with_action(std::string_view mechanism, std::string_view output, Offered, F f) {
  bool found = false;
  size_t number = 0;
  Registry::each_action([&](auto action) {
    using A = decltype(action);
    if constexpr (Offered::template has<A>()) {
      if (A::Entry::name == mechanism && A::output_name == output) {
        found = true;
        f(action, number);
      }
    }
    ++number;
  });
  if (found) return;
  std::string known;
  Registry::each_action([&](auto action) {
    using A = decltype(action);
    if constexpr (Offered::template has<A>()) {
      known.append(known.empty() ? "" : ", ").append(A::Entry::name).append(" ").append(A::output_name);
    }
  });
  throw std::invalid_argument("no kernel for '" + std::string(mechanism) + "' and '" + std::string(output) +
                              "': there are " + known);
}

}  // namespace ldpk
