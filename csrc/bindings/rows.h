// SPDX-License-Identifier: Apache-2.0
// Sums of clipped rows with noise.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>

#include "../cpu/reduce.h"
#include "call.h"

namespace ldpk {

// The sum of squares of each row of each span, as [rows, spans].
inline Table<double> clipped_squares(const py::array& spans, int64_t rows, const std::string& isa, int64_t threads) {
  const Kernels& kernels = kernels_named(isa);
  Table<double> squares(std::vector<py::ssize_t>{rows, spans.size()});
  double* out = squares.mutable_data();
  const Span* s = records<Span>(spans, "spans");
  const int64_t count = spans.size();
  const Unlocked unlocked;
  for (int64_t i = 0; i < count; ++i) square_rows(kernels, s[i], rows, threads, out + i, count);
  return squares;
}

// Scales from norms, [rows, bounds] both.
inline Table<double> clipped_scales(const Table<double>& norms, const Table<double>& bounds, const std::string& isa,
                                    int64_t threads) {
  if (norms.ndim() != 2 || norms.shape(1) != bounds.size()) throw std::invalid_argument("one bound for each column");
  const Kernels& kernels = kernels_named(isa);
  Table<double> scales(std::vector<py::ssize_t>{norms.shape(0), norms.shape(1)});
  const double* norm = norms.data();
  double* scale = scales.mutable_data();
  const int64_t rows = norms.shape(0), layers = bounds.size();
  const Unlocked unlocked;
  scale_rows(kernels, bounds.data(), layers, rows, threads, norm, scale);
  return scales;
}

// One scale for each row, or one for each row and span. With a bound above 0, norms of the rows in their place.
inline void clipped_sums(const py::array& spans, const Table<double>& scales, double bound, double stddev,
                         double divisor, double unit, int64_t grid_std, const Table<uint32_t>& key_words,
                         const std::string& isa, int64_t threads) {
  if (scales.ndim() != 2 || (scales.shape(1) != 1 && scales.shape(1) != spans.size()))
    throw std::invalid_argument("one scale for each row, or for each row and span");
  const Kernels& kernels = kernels_named(isa);
  const Key key = key_of(key_words);
  const ClippedNoise noise{stddev, divisor, unit, grid_std};
  const Span* s = records<Span>(spans, "spans");
  const double* scale = scales.data();
  const int64_t count = spans.size(), rows = scales.shape(0), stride = scales.shape(1);
  const Unlocked unlocked;
  for (int64_t i = 0; i < count; ++i)
    sum_columns(kernels, s[i], {scale + (stride > 1 ? i : 0), stride, bound}, rows, noise, key, threads);
}

// Both passes of a matrix of few columns at once. Writes the rows' norms where there is room for them.
inline void narrow_sums(const py::array& spans, int64_t rows, std::optional<Table<double>> norms, double bound,
                        double stddev, double divisor, double unit, int64_t grid_std, const py::object& key_words,
                        const std::string& isa, int64_t threads) {
  const Span* s = records<Span>(spans, "spans");
  if (spans.size() != 1 || s->numel < 1 || s->numel > kNarrowColumns)
    throw std::invalid_argument("one matrix of few columns");
  if (norms && norms->size() != rows) throw std::invalid_argument("one norm for each row");
  const Kernels& kernels = kernels_named(isa);
  const Key key = key_of(key_words);
  const ClippedNoise noise{stddev, divisor, unit, grid_std};
  double* out = norms ? norms->mutable_data() : nullptr;
  const Unlocked unlocked;
  sum_narrow(kernels, *s, bound, rows, noise, key, threads, out);
}

inline void bind_rows(py::module_& m) {
  m.def("clipped_squares", clipped_squares);
  m.def("clipped_scales", clipped_scales);
  m.def("clipped_sums", clipped_sums);
  m.def("narrow_sums", narrow_sums);
  m.attr("NARROW") = kNarrowColumns;
}

}  // namespace ldpk
