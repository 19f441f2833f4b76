// SPDX-License-Identifier: Apache-2.0
// What both Python modules share: NumPy's tables of spans and laws.
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

// NumPy's descriptions of the records that Python makes tables of: all their fields, in order. The two modules share
// pybind11's list of them where one compiler made both, and whichever is imported first describes them.
inline void register_records() {
  if (py::detail::get_numpy_internals().get_type_info(typeid(Span), false)) return;
  PYBIND11_NUMPY_DTYPE(Span, data, out, numel, first, dtype);
  PYBIND11_NUMPY_DTYPE(TwoPointLaw, center, slope, fallback, k_lo, k_hi, lower, upper);
  PYBIND11_NUMPY_DTYPE(SignLaw, center, steep, at, below, above, lower, upper);
  PYBIND11_NUMPY_DTYPE(PiecewiseLaw, center, slope, fallback, k_lo, k_hi, origin, band_draws, band_scale, rest_scale,
                       rest_shift, band_end, places, cell_bits, lowest, step);
  PYBIND11_NUMPY_DTYPE(HybridLaw, piecewise, last_draw, coin_lowest, coin_shift, coin_scale, lower_cell, upper_cell);
  PYBIND11_NUMPY_DTYPE(OrdinalCldpLaw, bound, reach, saturate, stochastic, scale, wide, low, middle, tail, unit, keep,
                       entries, thresholds, losses);
}

template <class T>
py::dtype dtype_of() {
  static_assert(alignof(T) == 8 && sizeof(T) % 8 == 0, "every backend can read a table as 64-bit integers");
  return py::dtype::of<T>();
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

}  // namespace ldpk
