// SPDX-License-Identifier: Apache-2.0
// Registration: NumPy tables and device addresses in, kernels on a stream out. The calls neither wait for the device
// nor copy to it: tables travel as the kernel's parameter and the key is read by the kernel, so that a captured CUDA
// graph can be replayed with another key. Addresses were checked by ldpkernels/inputs.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "../tables.h"
#include "../unlocked.h"
#include "cells.cuh"
#include "clipped_noise.cuh"
#include "keystream.cuh"
#include "ordinal_cldp.cuh"
#include "skeleton.cuh"

namespace ldpk {
namespace {

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // it is reported here, and must not be reported again by the next call
  throw std::runtime_error(std::string("CUDA: ") + what + ": " + cudaGetErrorString(error));
}

class OnDevice {
 public:
  explicit OnDevice(int device) {
    check(cudaGetDevice(&previous_), "no current device");
    moved_ = device != previous_;
    if (moved_) check(cudaSetDevice(device), "cannot use the device");
  }
  ~OnDevice() {
    if (moved_) cudaSetDevice(previous_);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int previous_ = 0;
  bool moved_ = false;
};

void check_key(int key_words) {
  if (key_words != Philox::key_words && key_words != ChaCha20::key_words) {
    throw std::invalid_argument("a key has 2 or 8 words: there are no kernels for AES on a GPU");
  }
}

int64_t multiprocessors(int device) {
  int count = 0;
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "cannot ask for the multiprocessors");
  return count;
}

// Where a launch's key lies, and where it runs.
struct Place {
  const uint32_t* key;
  int device;
  cudaStream_t stream;
};

// A shape of mechanisms (mechanisms/shapes.h) on the device: run<Cipher, output>(spans, laws, count, place).
template <class Shape>
struct OnCuda {
  static constexpr bool available = false;
};

// The shapes whose thread blocks take chunks.
template <class Shape>
struct ChunksOnCuda {
  using Law = typename Shape::Law;
  static constexpr bool available = true;

  template <class Cipher, Output output>
  static void run(const Span* spans, const Law* laws, int64_t count, const Place& place) {
    constexpr int few = InChunks<Shape>::few, many = InChunks<Shape>::many;
    const auto run = count <= few ? launch<Cipher, output, few> : launch<Cipher, output, many>;
    run(spans, laws, count, place);
  }

 private:
  template <class Cipher, Output output, int capacity>
  static void launch(const Span* spans, const Law* laws, int64_t count, const Place& place) {
    constexpr auto kernel =
        chunk_kernel<Shape, Cipher, output, capacity, Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f16>;
    const int32_t chunk = chunk_for(spans, count, 2 * kBlocks<Cipher> * multiprocessors(place.device));
    const auto start = [&](const PlanOf<Shape, capacity>& plan, int32_t chunks) {
      kernel<<<chunks, kWarps * kLanes, 0, place.stream>>>(plan);
      check(cudaGetLastError(), "cannot launch a kernel of weights");
    };
    for_chunked_plans<PlanOf<Shape, capacity>>(spans, laws, count, place.key, chunk, start);
  }
};

template <template <class> class Mechanism>
struct OnCuda<OneBit<Mechanism>> : ChunksOnCuda<OneBit<Mechanism>> {};

template <template <class> class Mechanism>
struct OnCuda<Cells<Mechanism>> : ChunksOnCuda<Cells<Mechanism>> {};

template <>
struct OnCuda<Resampled> {
  static constexpr bool available = true;

  template <class Cipher, Output>
  static void run(const Span* spans, const OrdinalCldpLaw* laws, int64_t count, const Place& place) {
    for_cldp_plans<Cipher>(spans, laws, count, place.key, [&](const CldpPlan& plan, int32_t blocks) {
      ordinal_cldp_kernel<Cipher><<<blocks, kCldpThreads, 0, place.stream>>>(plan);
      check(cudaGetLastError(), "cannot launch the ordinal CLDP kernel");
    });
  }
};

#if !defined(LDPKERNELS_CUDA_KERNELS)  // tests/ptx/few.cu has few of them
#define LDPKERNELS_CUDA_KERNELS(name, output) true
#endif

struct Offered {  // turns are for looking at: the CPU and Triton have them
  template <class Action>
  static constexpr bool has() {
    return OnCuda<typename Action::Entry::Shape>::available && Action::output != Output::turns &&
           LDPKERNELS_CUDA_KERNELS(Action::Entry::name, Action::output_name);
  }
};

// A mechanism's kernel over all spans.
void launch(const std::string& mechanism, const std::string& output, const py::array& spans, const py::array& laws,
            uint64_t key_address, int key_words, int device, uint64_t stream) {
  with_action(mechanism, output, Offered{}, [&](auto action, size_t) {
    using Entry = typename decltype(action)::Entry;
    using Shape = OnCuda<typename Entry::Shape>;
    constexpr Output result = decltype(action)::output;
    if (spans.size() != laws.size()) throw std::invalid_argument("one law for each span");
    check_key(key_words);
    const Span* s = records<Span>(spans, "spans");
    const auto* l = records<typename Entry::Law>(laws, "laws");
    const int64_t count = spans.size();
    const Place place{reinterpret_cast<const uint32_t*>(key_address), device, reinterpret_cast<cudaStream_t>(stream)};
    const Unlocked unlocked;
    const OnDevice on_device(device);
    if (key_words == Philox::key_words) {
      Shape::template run<Philox, result>(s, l, count, place);
    } else {
      Shape::template run<ChaCha20, result>(s, l, count, place);
    }
  });
}

struct ClippedLauncher {
  cudaStream_t stream;

  template <class Kernel>
  void launch(Kernel kernel, const ClippedPlan& plan, int32_t blocks, int threads = kClippedThreads) const {
    if (blocks == 0) return;
    kernel<<<blocks, threads, 0, stream>>>(plan);
    check(cudaGetLastError(), "cannot launch a kernel of clipped sums");
  }
  void squares(const ClippedPlan& plan, int32_t blocks) const { launch(clipped_squares_kernel, plan, blocks); }
  void norms(const ClippedPlan& plan, int32_t blocks) const { launch(clipped_norms_kernel, plan, blocks); }
  template <bool grid>
  void sums(const ClippedPlan& plan, int32_t blocks) const {
    launch(clipped_sums_kernel<grid, Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f16>, plan, blocks);
  }
  template <bool grid>
  void numbers(const ClippedPlan& plan, int32_t blocks) const {
    launch(clipped_numbers_kernel<grid, Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f16>, plan, blocks, kNumberThreads);
  }
  template <class Cipher, bool grid>
  void noise(const ClippedPlan& plan, int32_t blocks) const {
    launch(clipped_noise_kernel<Cipher, grid>, plan, blocks);
  }
};

int64_t clipped_workspace_of(const py::array& spans, int64_t rows, int64_t layers) {
  return clipped_workspace(records<Span>(spans, "spans"), spans.size(), rows, layers);
}

// Sums to each span's `out` and norms, [rows, bounds]. The workspace has as many fp64 numbers as clipped_workspace
// says.
void clipped_sums(const py::array& spans, const Table<double>& bounds, int64_t rows, double stddev, double divisor,
                  double unit, int64_t grid_std, uint64_t key_address, int key_words, uint64_t norms_address,
                  uint64_t workspace_address, int device, uint64_t stream_handle) {
  if (spans.size() == 0 || (bounds.size() != 1 && bounds.size() != spans.size()))
    throw std::invalid_argument("one bound, or one for each span");
  check_key(key_words);
  const ClippedCall call{records<Span>(spans, "spans"),
                         spans.size(),
                         bounds.data(),
                         bounds.size(),
                         rows,
                         {stddev, divisor, unit, grid_std},
                         reinterpret_cast<const uint32_t*>(key_address),
                         reinterpret_cast<double*>(norms_address),
                         reinterpret_cast<double*>(workspace_address)};
  const ClippedLauncher launcher{reinterpret_cast<cudaStream_t>(stream_handle)};
  const Unlocked unlocked;
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
  const Unlocked unlocked;
  const OnDevice on_device(device);
  if (blocks <= 0) return;
  const auto kernel = key_words == Philox::key_words ? keystream_kernel<Philox> : keystream_kernel<ChaCha20>;
  const auto grid = static_cast<unsigned>(std::min<int64_t>(divided_up(blocks, kKeystreamThreads), 1 << 16));
  kernel<<<grid, kKeystreamThreads, 0, stream>>>(key, stream_number, first_block, blocks, out);
  check(cudaGetLastError(), "cannot launch the keystream kernel");
}

// The next key of a device's state, to eight words at `out_address`.
void next_key(uint64_t state_address, uint64_t out_address, int device, uint64_t stream_handle) {
  const Unlocked unlocked;
  const OnDevice on_device(device);
  next_key_kernel<<<1, 1, 0, reinterpret_cast<cudaStream_t>(stream_handle)>>>(
      reinterpret_cast<KeyState*>(state_address), reinterpret_cast<uint32_t*>(out_address));
  check(cudaGetLastError(), "cannot launch the kernel of keys");
}

PYBIND11_MODULE(_cuda, m) {
  m.doc() = "The CUDA kernels of ldpkernels. The public functions are in the package.";
  register_records();
  py::set names;
  Registry::each([&](auto entry) {
    if (OnCuda<typename decltype(entry)::Shape>::available) names.add(std::string(entry.name));
  });
  m.attr("MECHANISMS") = py::frozenset(names);

  m.def("launch", launch, py::arg("mechanism"), py::arg("output"), py::arg("spans"), py::arg("laws"),
        py::arg("key_address"), py::arg("key_words"), py::arg("device"), py::arg("stream"));
  m.def("clipped_workspace", clipped_workspace_of, py::arg("spans"), py::arg("rows"), py::arg("layers"));
  m.def("clipped_sums", clipped_sums, py::arg("spans"), py::arg("bounds"), py::arg("rows"), py::arg("stddev"),
        py::arg("divisor"), py::arg("unit"), py::arg("grid_std"), py::arg("key_address"), py::arg("key_words"),
        py::arg("norms_address"), py::arg("workspace_address"), py::arg("device"), py::arg("stream"));
  m.def("next_key", next_key, py::arg("state_address"), py::arg("out_address"), py::arg("device"), py::arg("stream"));
  m.def("keystream", keystream, py::arg("key_address"), py::arg("key_words"), py::arg("stream_number"),
        py::arg("first_block"), py::arg("blocks"), py::arg("out_address"), py::arg("device"), py::arg("stream"));
}

}  // namespace
}  // namespace ldpk
