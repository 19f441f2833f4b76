// SPDX-License-Identifier: Apache-2.0
// Registration: NumPy tables and device addresses in, kernels on a stream out. The calls neither wait for the device
// nor copy to it: tables travel as the kernel's parameter and the key is read by the kernel, so that a captured CUDA
// graph can be replayed with another key. Addresses were checked by ldpkernels/_tensors.py.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "clipped_noise.cuh"
#include "ordinal_cldp.cuh"
#include "skeleton.cuh"

namespace py = pybind11;

namespace ldpk {
namespace {

// pybind11 registers a struct once in a process, and _native has registered Span and TwoPointLaw: these names are ours.
struct SpanRow : Span {};
struct LawRow : TwoPointLaw {};
struct CldpLawRow : OrdinalCldpLaw {};

template <class T>
using Table = py::array_t<T, py::array::c_style>;

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // it is reported here, and must not be reported again by the next call
  throw std::runtime_error(std::string("CUDA: ") + what + ": " + cudaGetErrorString(error));
}

class OnDevice {
 public:
  explicit OnDevice(int device) {
    check(cudaGetDevice(&previous_), "no current device");
    if (device != previous_) check(cudaSetDevice(device), "cannot use the device");
  }
  ~OnDevice() { cudaSetDevice(previous_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int previous_ = 0;
};

void check_key(int key_words) {
  if (key_words != Philox::key_words && key_words != ChaCha20::key_words) {
    throw std::invalid_argument("a key has 2 or 8 words");
  }
}

int64_t multiprocessors(int device) {
  int count = 0;
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "cannot ask for the multiprocessors");
  return count;
}

template <class Cipher, Result result, int capacity>
void launch(const Span* spans, const TwoPointLaw* laws, int64_t count, const uint32_t* key, int device,
            cudaStream_t stream) {
  constexpr auto kernel = two_point_kernel<Cipher, result, capacity, Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f16>;
  const int32_t chunk = chunk_for(spans, count, 2 * kBlocks<Cipher> * multiprocessors(device));
  for_plans<capacity>(spans, laws, count, key, chunk, [&](const Plan<capacity>& plan, int32_t chunks) {
    kernel<<<chunks, kWarps * kLanes, 0, stream>>>(plan);
    check(cudaGetLastError(), "cannot launch the two-point kernel");
  });
}

template <Result result>
void two_point(const Table<SpanRow>& spans, const Table<LawRow>& laws, uint64_t key_address, int key_words, int device,
               uint64_t stream_handle) {
  if (spans.size() != laws.size()) throw std::invalid_argument("one law for each span");
  check_key(key_words);
  const Span* s = spans.data();
  const TwoPointLaw* l = laws.data();
  const int64_t count = spans.size();
  const auto key = reinterpret_cast<const uint32_t*>(key_address);
  const auto stream = reinterpret_cast<cudaStream_t>(stream_handle);
  py::gil_scoped_release unlocked;
  const OnDevice on_device(device);
  const bool philox = key_words == Philox::key_words;
  if (count <= kFewSpans) {
    (philox ? launch<Philox, result, kFewSpans> : launch<ChaCha20, result, kFewSpans>)(s, l, count, key, device,
                                                                                       stream);
  } else {
    (philox ? launch<Philox, result, kManySpans> : launch<ChaCha20, result, kManySpans>)(s, l, count, key, device,
                                                                                         stream);
  }
}

template <class Cipher>
void launch_cldp(const Span* spans, const OrdinalCldpLaw* laws, int64_t count, const uint32_t* key,
                 cudaStream_t stream) {
  for_cldp_plans<Cipher>(spans, laws, count, key, [&](const CldpPlan& plan, int32_t blocks) {
    ordinal_cldp_kernel<Cipher><<<blocks, kCldpThreads, 0, stream>>>(plan);
    check(cudaGetLastError(), "cannot launch the ordinal CLDP kernel");
  });
}

void ordinal_cldp(const Table<SpanRow>& spans, const Table<CldpLawRow>& laws, uint64_t key_address, int key_words,
                  int device, uint64_t stream_handle) {
  if (spans.size() != laws.size()) throw std::invalid_argument("one law for each span");
  check_key(key_words);
  const Span* s = spans.data();
  const OrdinalCldpLaw* l = laws.data();
  const int64_t count = spans.size();
  const auto key = reinterpret_cast<const uint32_t*>(key_address);
  const auto stream = reinterpret_cast<cudaStream_t>(stream_handle);
  py::gil_scoped_release unlocked;
  const OnDevice on_device(device);
  (key_words == Philox::key_words ? launch_cldp<Philox> : launch_cldp<ChaCha20>)(s, l, count, key, stream);
}

struct ClippedLauncher {
  cudaStream_t stream;

  template <class Kernel>
  void launch(Kernel kernel, const ClippedPlan& plan, int32_t blocks) const {
    kernel<<<blocks, kClippedThreads, 0, stream>>>(plan);
    check(cudaGetLastError(), "cannot launch a kernel of clipped sums");
  }
  void squares(const ClippedPlan& plan, int32_t blocks) const { launch(clipped_squares_kernel, plan, blocks); }
  void norms(const ClippedPlan& plan, int32_t blocks) const { launch(clipped_norms_kernel, plan, blocks); }
  template <bool grid>
  void sums(const ClippedPlan& plan, int32_t blocks) const {
    launch(clipped_sums_kernel<grid>, plan, blocks);
  }
  template <class Cipher, bool grid>
  void noise(const ClippedPlan& plan, int32_t blocks) const {
    launch(clipped_noise_kernel<Cipher, grid>, plan, blocks);
  }
};

int64_t clipped_workspace_of(const Table<SpanRow>& spans, int64_t rows, int64_t layers) {
  return clipped_workspace(spans.data(), spans.size(), rows, layers);
}

// Sums to each span's `out` and norms, [rows, bounds]. The workspace has as many fp64 numbers as clipped_workspace
// says.
void clipped_sums(const Table<SpanRow>& spans, const Table<double>& bounds, int64_t rows, double stddev, double divisor,
                  double unit, int64_t grid_std, uint64_t key_address, int key_words, uint64_t norms_address,
                  uint64_t workspace_address, int device, uint64_t stream_handle) {
  if (spans.size() == 0 || (bounds.size() != 1 && bounds.size() != spans.size()))
    throw std::invalid_argument("one bound, or one for each span");
  check_key(key_words);
  const ClippedCall call{spans.data(),
                         spans.size(),
                         bounds.data(),
                         bounds.size(),
                         rows,
                         {stddev, divisor, unit, grid_std},
                         reinterpret_cast<const uint32_t*>(key_address),
                         reinterpret_cast<double*>(norms_address),
                         reinterpret_cast<double*>(workspace_address)};
  const ClippedLauncher launcher{reinterpret_cast<cudaStream_t>(stream_handle)};
  py::gil_scoped_release unlocked;
  const OnDevice on_device(device);
  key_words == Philox::key_words ? call.run<Philox>(launcher) : call.run<ChaCha20>(launcher);
}

// Blocks of a keystream, for known-answer tests.
void keystream(uint64_t key_address, int key_words, uint32_t stream_number, uint64_t first_block, int64_t blocks,
               uint64_t out_address, int device, uint64_t stream_handle) {
  check_key(key_words);
  const auto key = reinterpret_cast<const uint32_t*>(key_address);
  const auto out = reinterpret_cast<uint32_t*>(out_address);
  const auto stream = reinterpret_cast<cudaStream_t>(stream_handle);
  py::gil_scoped_release unlocked;
  const OnDevice on_device(device);
  if (blocks <= 0) return;
  const auto kernel = key_words == Philox::key_words ? keystream_kernel<Philox> : keystream_kernel<ChaCha20>;
  kernel<<<static_cast<unsigned>(std::min<int64_t>((blocks + 255) / 256, 1 << 16)), 256, 0, stream>>>(
      key, stream_number, first_block, blocks, out);
  check(cudaGetLastError(), "cannot launch the keystream kernel");
}

PYBIND11_MODULE(_cuda, m) {
  m.doc() = "The CUDA kernels of ldpkernels. The public functions are in the package.";
  PYBIND11_NUMPY_DTYPE(SpanRow, data, out, numel, first, dtype);
  PYBIND11_NUMPY_DTYPE(LawRow, center, slope, fallback, k_lo, k_hi, lower, upper);
  PYBIND11_NUMPY_DTYPE(CldpLawRow, bound, reach, saturate, wide, stochastic, scale, lanes, sign, quotient, thresholds);
  m.attr("SPAN") = py::dtype::of<SpanRow>();
  m.attr("TWO_POINT_LAW") = py::dtype::of<LawRow>();

  const auto table_call = [&](const char* name, auto function) {
    m.def(name, function, py::arg("spans"), py::arg("laws"), py::arg("key_address"), py::arg("key_words"),
          py::arg("device"), py::arg("stream"));
  };
  table_call("two_point_values", two_point<Result::values>);
  table_call("two_point_bits", two_point<Result::bits>);
  table_call("ordinal_cldp", ordinal_cldp);
  table_call("two_point_thresholds", two_point<Result::thresholds>);
  m.def("clipped_workspace", clipped_workspace_of, py::arg("spans"), py::arg("rows"), py::arg("layers"));
  m.def("clipped_sums", clipped_sums, py::arg("spans"), py::arg("bounds"), py::arg("rows"), py::arg("stddev"),
        py::arg("divisor"), py::arg("unit"), py::arg("grid_std"), py::arg("key_address"), py::arg("key_words"),
        py::arg("norms_address"), py::arg("workspace_address"), py::arg("device"), py::arg("stream"));
  m.def("keystream", keystream, py::arg("key_address"), py::arg("key_words"), py::arg("stream_number"),
        py::arg("first_block"), py::arg("blocks"), py::arg("out_address"), py::arg("device"), py::arg("stream"));
}

}  // namespace
}  // namespace ldpk
