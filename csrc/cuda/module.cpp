// SPDX-License-Identifier: Apache-2.0
// Registration: NumPy tables and device addresses in, kernels on a stream out. Addresses were checked by
// ldpkernels/inputs.
#include "../tables.h"
#include "../unlocked.h"
#include "launches.h"

namespace ldpk {
namespace {

template <class T>
T* at(uint64_t address) {
  return reinterpret_cast<T*>(address);
}

struct Offered {  // launches.cu says which it has
  template <class Action>
  static constexpr bool has() {
    return Action::output != Output::turns;
  }
};

void launch_over(const std::string& mechanism, const std::string& output, const py::array& spans, const py::array& laws,
                 uint64_t key_address, int key_words, int device, uint64_t stream) {
  with_action(mechanism, output, Offered{}, [&](auto action, size_t) {
    if (spans.size() != laws.size()) throw std::invalid_argument("one law for each span");
    const Span* s = records<Span>(spans, "spans");
    const auto* l = records<typename decltype(action)::Entry::Law>(laws, "laws");
    const int64_t count = spans.size();
    const Unlocked unlocked;
    launch(mechanism, output, s, l, count, {at<uint32_t>(key_address), key_words, device, stream});
  });
}

int64_t workspace(const py::array& spans, int64_t rows, int64_t layers) {
  return clipped_workspace(records<Span>(spans, "spans"), spans.size(), rows, layers);
}

// The workspace has as many fp64 numbers as `workspace` says.
void sums(const py::array& spans, const Table<double>& bounds, int64_t rows, double stddev, double divisor, double unit,
          int64_t grid_std, uint64_t key_address, int key_words, uint64_t norms_address, uint64_t workspace_address,
          int device, uint64_t stream) {
  const int64_t count = spans.size(), layers = bounds.size();
  if (count == 0 || (layers != 1 && layers != count)) throw std::invalid_argument("one bound, or one for each span");
  const Span* s = records<Span>(spans, "spans");
  const double* of_layers = bounds.data();
  const Unlocked unlocked;
  clipped_sums(s, count, of_layers, layers, rows, {stddev, divisor, unit, grid_std}, at<double>(norms_address),
               at<double>(workspace_address), {at<uint32_t>(key_address), key_words, device, stream});
}

void blocks_of_keystream(uint64_t key_address, int key_words, uint32_t stream_number, uint64_t first_block,
                         int64_t blocks, uint64_t out_address, int device, uint64_t stream) {
  const Unlocked unlocked;
  keystream(stream_number, first_block, blocks, at<uint32_t>(out_address),
            {at<uint32_t>(key_address), key_words, device, stream});
}

void key_of(uint64_t state_address, uint64_t out_address, int device, uint64_t stream) {
  const Unlocked unlocked;
  next_key(at<void>(state_address), at<uint32_t>(out_address), {nullptr, 0, device, stream});
}

PYBIND11_MODULE(_cuda, m) {
  m.doc() = "The CUDA kernels of ldpkernels. The public functions are in the package.";
  register_records();
  py::set names;
  Registry::each([&](auto entry) {
    if (has_kernels(entry.name)) names.add(std::string(entry.name));
  });
  m.attr("MECHANISMS") = py::frozenset(names);

  m.def("launch", launch_over, py::arg("mechanism"), py::arg("output"), py::arg("spans"), py::arg("laws"),
        py::arg("key_address"), py::arg("key_words"), py::arg("device"), py::arg("stream"));
  m.def("clipped_workspace", workspace, py::arg("spans"), py::arg("rows"), py::arg("layers"));
  m.def("clipped_sums", sums, py::arg("spans"), py::arg("bounds"), py::arg("rows"), py::arg("stddev"),
        py::arg("divisor"), py::arg("unit"), py::arg("grid_std"), py::arg("key_address"), py::arg("key_words"),
        py::arg("norms_address"), py::arg("workspace_address"), py::arg("device"), py::arg("stream"));
  m.def("next_key", key_of, py::arg("state_address"), py::arg("out_address"), py::arg("device"), py::arg("stream"));
  m.def("keystream", blocks_of_keystream, py::arg("key_address"), py::arg("key_words"), py::arg("stream_number"),
        py::arg("first_block"), py::arg("blocks"), py::arg("out_address"), py::arg("device"), py::arg("stream"));
}

}  // namespace
}  // namespace ldpk
