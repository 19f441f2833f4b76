// SPDX-License-Identifier: Apache-2.0
// Laws of many ranges in one crossing. Where a law needs Python (laws/wide.h) there is no table at all.
#pragma once

#include <pybind11/stl.h>

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "../laws/cells.h"
#include "../laws/one_bit.h"
#include "../tables.h"

namespace ldpk {

// f(i, range, dtype) for each C, R and dtype; f(i) where they are the objects of those before.
template <class F>
void each_range(const py::tuple& c, const py::tuple& r, const py::tuple& dtypes, F f) {
  const size_t n = c.size();
  if (r.size() != n || dtypes.size() != n)
    throw std::invalid_argument("the arguments C, R and dtypes have one value each for every tensor");
  for (size_t i = 0; i < n; ++i) {
    const auto alike = [i](const py::tuple& of) {
      return PyTuple_GET_ITEM(of.ptr(), i) == PyTuple_GET_ITEM(of.ptr(), i - 1);
    };
    if (i > 0 && alike(c) && alike(r) && alike(dtypes)) {
      f(i);
      continue;
    }
    const auto dtype = static_cast<Dtype>(dtypes[i].cast<int64_t>());
    if (dtype < Dtype::f32 || dtype > Dtype::f16) throw std::invalid_argument("a dtype of weights");
    f(i, executed_range(c[i].cast<double>(), r[i].cast<double>(), compute_dtype(dtype)), dtype);
  }
}

template <class... Fs>
struct Either : Fs... {
  using Fs::operator()...;
};
template <class... Fs>
Either(Fs...) -> Either<Fs...>;

// one(range, dtype) for each C, R and dtype, as a table of laws; None where one of them is declined.
template <class Law, class One>
py::object law_table(const py::tuple& c, const py::tuple& r, const py::tuple& dtypes, One one) {
  py::array table(dtype_of<Law>(), c.size());
  auto* laws = static_cast<Law*>(table.mutable_data());
  try {
    each_range(c, r, dtypes,
               Either{[&](size_t i, const ExecutedRange& range, Dtype dtype) { laws[i] = one(range, dtype); },
                      [&](size_t i) { laws[i] = laws[i - 1]; }});
  } catch (const Declined&) {
    return py::none();
  }
  return table;
}

// C and R of each as a kernel executes them; None where one of them is declined.
inline py::object executed_ranges(const py::tuple& c, const py::tuple& r, const py::tuple& dtypes) {
  py::list found(c.size());
  try {
    each_range(c, r, dtypes,
               Either{[&](size_t i, const ExecutedRange& range, Dtype) { found[i] = py::make_tuple(range.c, range.r); },
                      [&](size_t i) { found[i] = found[i - 1]; }});
  } catch (const Declined&) {
    return py::none();
  }
  return found;
}

template <class Law>
Law one_bit_law(const OneBitIntegers& found) {
  if constexpr (std::is_same_v<Law, TwoPointLaw>) {
    return found.law;
  } else {
    return Law::of(found);
  }
}

inline py::object one_bit_laws(const std::string& mechanism, const py::tuple& c, const py::tuple& r,
                               const py::tuple& dtypes, int64_t lowest, bool report) {
  if (lowest < 1 || lowest >= kDraws / 2) throw std::invalid_argument("a threshold below half of the draws");
  py::object table = py::none();
  Registry::each([&](auto entry) {
    using Law = typename decltype(entry)::Law;
    if constexpr (std::is_same_v<Law, TwoPointLaw> || requires(OneBitIntegers found) { Law::of(found); }) {
      if (entry.name != mechanism) return;
      table = law_table<Law>(c, r, dtypes, [&](const ExecutedRange& range, Dtype dtype) {
        return one_bit_law<Law>(one_bit_integers(range, lowest, dtype, report));
      });
    }
  });
  return table;
}

inline PlacedCells cells_of(const ExecutedRange& range, Dtype dtype, bool report, const Circles& circles) {
  const Format& compute = format_of(compute_dtype(dtype));
  PlacedCells cells = report ? report_cells(range, compute, circles.of(kByteCells))
                             : value_cells(range, format_of(dtype), compute, circles);
  cells.check();
  return cells;
}

inline py::object piecewise_laws(const py::tuple& c, const py::tuple& r, const py::tuple& dtypes, bool report,
                                 const Circles& circles) {
  return law_table<PiecewiseLaw>(c, r, dtypes, [&](const ExecutedRange& range, Dtype dtype) {
    return cells_of(range, dtype, report, circles).law(range.c);
  });
}

// `alone` are the piecewise mechanism's, for ranges of a coarse dtype that leave no room for a coin.
inline py::object hybrid_laws(const py::tuple& c, const py::tuple& r, const py::tuple& dtypes, bool report,
                              const Circles& circles, const Circles& alone) {
  return law_table<HybridLaw>(c, r, dtypes, [&](const ExecutedRange& range, Dtype dtype) {
    PlacedCells cells = cells_of(range, dtype, report, circles);
    const std::optional<Coin> found = coin_of(cells, circles);
    if (!found) cells = cells_of(range, dtype, report, alone);
    const Coin coin = found.value_or(Coin{});
    return HybridLaw{cells.law(range.c), cells.circle->draws - 1, coin.lowest, coin.shift, coin.scale, coin.lower,
                     coin.upper};
  });
}

// A positive integer from its bytes, the lowest first.
inline Wide wide_of(const std::string_view bytes) {
  std::vector<uint64_t> digits(bytes.size() / 8);
  memcpy(digits.data(), bytes.data(), 8 * digits.size());
  return Wide(digits.data(), digits.size());
}

inline void bind_laws(py::module_& m) {
  m.def("executed_ranges", executed_ranges);
  m.def("one_bit_laws", one_bit_laws);
  m.def("piecewise_laws", piecewise_laws);
  m.def("hybrid_laws", hybrid_laws);
  py::class_<Circles>(m, "Circles").def(py::init([](py::function prove, std::string_view over, std::string_view under) {
    const auto one = [prove](int64_t cells) {
      const auto n = prove(cells).cast<std::array<int64_t, 8>>();
      return Circle(n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7]);
    };
    return std::make_unique<Circles>(one, wide_of(over), wide_of(under));
  }));
}

}  // namespace ldpk
