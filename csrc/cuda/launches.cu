// SPDX-License-Identifier: Apache-2.0
// Launches: a call's spans are cut into plans, and each is a kernel's parameter.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "../mechanisms/registry.h"
#include "cells.cuh"
#include "clipped_noise.cuh"
#include "keystream.cuh"
#include "launches.h"
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

bool is_philox(const Place& place) {
  if (place.key_words != Philox::key_words && place.key_words != ChaCha20::key_words)
    throw std::invalid_argument("a key has 2 or 8 words: there are no kernels for AES on a GPU");
  return place.key_words == Philox::key_words;
}

cudaStream_t stream_of(const Place& place) { return reinterpret_cast<cudaStream_t>(place.stream); }

int64_t multiprocessors(int device) {
  int count = 0;
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "cannot ask for the multiprocessors");
  return count;
}

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
    const int32_t chunk = chunk_for(spans, count, 2 * kBlocks<Cipher> * multiprocessors(place.device), kChunkUnit, 8);
    const auto start = [&](const PlanOf<Shape, capacity>& plan, int32_t chunks) {
      kernel<<<chunks, kWarps * kLanes, 0, stream_of(place)>>>(plan);
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
    const int64_t enough = 16 * multiprocessors(place.device);
    const auto start = [&](const CldpPlan& plan, int32_t blocks) {
      ordinal_cldp_kernel<Cipher><<<blocks, kCldpThreads, 0, stream_of(place)>>>(plan);
      check(cudaGetLastError(), "cannot launch the ordinal CLDP kernel");
    };
    // Few tensors fit one launch, and its thread blocks must be enough for the device.
    for (int64_t first = 0; first < count; first += CldpPlan::capacity) {
      const int64_t some = std::min<int64_t>(count - first, CldpPlan::capacity);
      const int32_t chunk = cldp_chunk<Cipher>(spans + first, some, enough);
      for_chunked_plans<CldpPlan>(spans + first, laws + first, some, place.key, chunk, start);
    }
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

}  // namespace

bool has_kernels(std::string_view mechanism) {
  bool found = false;
  Registry::each(
      [&](auto entry) { found |= entry.name == mechanism && OnCuda<typename decltype(entry)::Shape>::available; });
  return found;
}

void launch(std::string_view mechanism, std::string_view output, const Span* spans, const void* laws, int64_t count,
            const Place& place) {
  with_action(mechanism, output, Offered{}, [&](auto action, size_t) {
    using Entry = typename decltype(action)::Entry;
    using Shape = OnCuda<typename Entry::Shape>;
    constexpr Output result = decltype(action)::output;
    const auto* l = static_cast<const typename Entry::Law*>(laws);
    const bool philox = is_philox(place);
    const OnDevice on_device(place.device);
    philox ? Shape::template run<Philox, result>(spans, l, count, place)
           : Shape::template run<ChaCha20, result>(spans, l, count, place);
  });
}

int64_t clipped_workspace(const Span* spans, int64_t count, int64_t rows, int64_t layers) {
  if (is_single(spans, count)) return row_groups(rows);
  int64_t numbers = rows * layers;
  for (int64_t s = 0; s < count; ++s)
    numbers += rows * divided_up(spans[s].numel, kStretch) + row_groups(rows) * spans[s].numel;
  return numbers;
}

void clipped_sums(const Span* spans, int64_t count, const double* bounds, int64_t layers, int64_t rows,
                  const ClippedNoise& noise, double* norms, double* workspace, const Place& place) {
  const ClippedCall call{spans, count, bounds, layers, rows, noise, place.key, norms, workspace};
  const ClippedLauncher launcher{stream_of(place)};
  const bool philox = is_philox(place);
  const OnDevice on_device(place.device);
  philox ? call.run<Philox>(launcher) : call.run<ChaCha20>(launcher);
}

void keystream(uint32_t stream_number, uint64_t first_block, int64_t blocks, uint32_t* out, const Place& place) {
  const auto kernel = is_philox(place) ? keystream_kernel<Philox> : keystream_kernel<ChaCha20>;
  const OnDevice on_device(place.device);
  if (blocks <= 0) return;
  const auto grid = static_cast<unsigned>(std::min<int64_t>(divided_up(blocks, kKeystreamThreads), 1 << 16));
  kernel<<<grid, kKeystreamThreads, 0, stream_of(place)>>>(place.key, stream_number, first_block, blocks, out);
  check(cudaGetLastError(), "cannot launch the keystream kernel");
}

void next_key(void* state, uint32_t* out, const Place& place) {
  const OnDevice on_device(place.device);
  next_key_kernel<<<1, 1, 0, stream_of(place)>>>(static_cast<KeyState*>(state), out);
  check(cudaGetLastError(), "cannot launch the kernel of keys");
}

}  // namespace ldpk
