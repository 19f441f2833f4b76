// SPDX-License-Identifier: Apache-2.0
// Weights one by one: a mechanism's kernel over all spans, and what adaptive ranges ask of them.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "../cpu/select.h"
#include "call.h"

namespace ldpk {

// Where each span starts if they lie in one row, each from a multiple of 8 on; and the row's end.
inline std::vector<int64_t> row_of(const Span* spans, int64_t count) {
  std::vector<int64_t> starts(count + 1, 0);
  for (int64_t i = 0; i < count; ++i) starts[i + 1] = starts[i] + divided_up(spans[i].numel, 8) * 8;
  return starts;
}

// How far from spans[i] to spans[count - 1] small spans follow one another in the stream.
inline uint64_t end_of_small(const Span* spans, int64_t count, int64_t i) {
  const auto follows = [](const Span& next, const Span& one) {
    const int64_t gap = next.first - (one.first + one.numel);
    return next.numel <= kSmallSpan && gap >= 0 && gap < 8;
  };
  while (i + 1 < count && follows(spans[i + 1], spans[i])) ++i;
  return spans[i].first + spans[i].numel;
}

// run(span, begin, end, shared) over all spans, in tasks of as many elements: a large span has many, and small ones
// share one, whichever tensors they are.
template <class Run>
void run_row(const Span* spans, int64_t count, int64_t threads, Run run) {
  const std::vector<int64_t> starts = row_of(spans, count);
  parallel_for(divided_up(starts[count], kTask), threads, [&](int64_t task) {
    const int64_t begin = task * kTask, end = begin + kTask;
    Shared shared;
    const auto span_at = [&](int64_t element) {
      return std::upper_bound(starts.begin(), starts.end(), element) - starts.begin() - 1;
    };
    const int64_t stop = std::min<int64_t>(span_at(end - 1) + 1, count);
    for (int64_t i = span_at(begin); i < stop; ++i) {
      const Span& span = spans[i];
      const int64_t from = std::max(begin - starts[i], int64_t{0}), to = std::min(end - starts[i], span.numel);
      if (from >= to) continue;
      if (span.numel > kSmallSpan || count == 1) {
        run(i, from, to, nullptr);
        continue;
      }
      if (static_cast<uint64_t>(span.first) >= shared.until) shared.until = end_of_small(spans, stop, i);
      run(i, from, to, &shared);
    }
  });
}

struct OnEveryCpu {
  template <class Action>
  static constexpr bool has() {
    return true;
  }
};

// A mechanism's kernel over all spans, with one law for each or one for all.
inline void launch(const std::string& mechanism, const std::string& output, const py::array& spans,
                   const py::array& laws, const py::object& key_words, const std::string& isa, int64_t threads) {
  with_action(mechanism, output, OnEveryCpu{}, [&](auto action, size_t number) {
    using Law = typename decltype(action)::Entry::Law;
    if (laws.size() != spans.size() && laws.size() != 1) throw std::invalid_argument("one law for each span");
    const Key key = key_of(key_words);
    const auto run_chunk = kernels_named(isa).actions[number];
    const Span* s = records<Span>(spans, "spans");
    const Law* law = records<Law>(laws, "laws");
    const int64_t count = spans.size(), step = laws.size() > 1 ? 1 : 0;
    const Unlocked unlocked;
    const auto run = [&](int64_t i, int64_t begin, int64_t end, Shared* shared) {
      run_chunk(s[i], law + i * step, key, begin, end, shared);
    };
    run_row(s, count, threads, run);
  });
}

inline std::vector<Summary> summarize_spans(const py::array& spans, const std::string& isa, int64_t threads) {
  const Kernels& kernels = kernels_named(isa);
  const Span* s = records<Span>(spans, "spans");
  const int64_t count = spans.size();
  std::vector<std::vector<Summary>> parts(count);
  for (int64_t i = 0; i < count; ++i) parts[i].resize(divided_up(s[i].numel, kSummaryPart));
  const Unlocked unlocked;
  for_chunks(s, count, kSummaryPart, threads, [&](int64_t i, int64_t begin, int64_t end) {
    parts[i][begin / kSummaryPart] = kernels.summarize(s[i], begin, end);
  });
  std::vector<Summary> sums(count);
  for (int64_t i = 0; i < count; ++i) {
    for (const Summary& part : parts[i]) sums[i].add(part);
  }
  return sums;
}

inline std::vector<double> select(const py::array& spans, const std::vector<int64_t>& ranks, int64_t threads) {
  if (threads < 1) throw std::invalid_argument("at least one thread");
  const Span* s = records<Span>(spans, "spans");
  const int64_t count = spans.size();
  const Unlocked unlocked;
  return order_statistics(s, count, ranks, threads);
}

// Where arrays lie: by NumPy's own attributes, this is an object for each and most of a microsecond.
inline std::vector<uint64_t> addresses_of(const std::vector<py::array>& arrays) {
  std::vector<uint64_t> found;
  for (const py::array& array : arrays) found.push_back(reinterpret_cast<uint64_t>(array.data()));
  return found;
}

inline void bind_weights(py::module_& m) {
  m.def("launch", launch, py::arg("mechanism"), py::arg("output"), py::arg("spans"), py::arg("laws"),
        py::arg("key_words"), py::arg("isa"), py::arg("threads"));
  m.def("addresses", addresses_of);
  py::class_<Summary>(m, "Summary")
      .def(py::init([](double min, double max, double sum, double sum_squares, int64_t finite) {
        return Summary{min, max, sum, sum_squares, finite};
      }))
      .def_readonly("min", &Summary::min)
      .def_readonly("max", &Summary::max)
      .def_readonly("sum", &Summary::sum)
      .def_readonly("sum_squares", &Summary::sum_squares)
      .def_readonly("finite", &Summary::finite);
  m.def("summarize", summarize_spans);
  m.def("order_statistics", select);
}

}  // namespace ldpk
