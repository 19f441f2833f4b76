// SPDX-License-Identifier: Apache-2.0
// The CUDA kernels on the host, for the tests: the same plans and steps, lane by lane. Compiled by
// tests/test_cuda_static.py.
#include <new>

#include "../../csrc/cuda/skeleton.cuh"

namespace ldpk {
namespace {

// The lanes of a warp between two barriers, one after another.
struct HostWarp {
  uint32_t* tile;
  template <class Step, class... Arguments>
  void run(const Arguments&... arguments) const {
    alignas(Step) unsigned char memory[kLanes * sizeof(Step)];
    Step* const steps = reinterpret_cast<Step*>(memory);
    for (int lane = 0; lane < kLanes; ++lane) (new (steps + lane) Step(arguments..., lane))->begin(tile);
    for (int lane = 0; lane < kLanes; ++lane) steps[lane].finish(tile);
  }
};

template <template <class> class Mechanism, class Cipher, Output result>
void run(const Span* spans, const void* laws, int64_t count, const uint32_t* key, int64_t blocks) {
  constexpr int capacity = 4;  // small, so that a few spans are several launches
  const auto launch = [](const auto& plan, int32_t chunks) {
    alignas(16) uint32_t tile[kLanes * 16];
    for (int32_t c = 0; c < chunks; ++c) {
      for (int warp = 0; warp < kWarps; ++warp) {
        one_bit_block<Mechanism, Cipher, result, Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f16>(plan, c, warp,
                                                                                                  HostWarp{tile});
      }
    }
  };
  const auto* of_one_bit = static_cast<const typename OneBit<Mechanism>::Law*>(laws);
  for_one_bit_plans<Mechanism, capacity>(spans, of_one_bit, count, key, chunk_for(spans, count, blocks), launch);
}

// The mechanisms of another shape have emulations of their own.
template <class Shape>
struct Emulated {
  template <class Cipher, Output>
  static void run(const Span*, const void*, int64_t, const uint32_t*, int64_t) {}
};
template <template <class> class Mechanism>
struct Emulated<OneBit<Mechanism>> {
  template <class Cipher, Output result>
  static void run(const Span* spans, const void* laws, int64_t count, const uint32_t* key, int64_t blocks) {
    ldpk::run<Mechanism, Cipher, result>(spans, laws, count, key, blocks);
  }
};

}  // namespace
}  // namespace ldpk

// A mechanism and an output by their names in the registry. `blocks` is how many thread blocks the device would run at
// once.
extern "C" void emulate(const char* mechanism, const char* output, const ldpk::Span* spans, const void* laws,
                        int64_t count, const uint32_t* key, int key_words, int64_t blocks) {
  using namespace ldpk;
  Registry::each_action([&](auto action) {
    using Action = decltype(action);
    using One = Emulated<typename Action::Entry::Shape>;
    if (Action::Entry::name != mechanism || Action::output_name != output) return;
    if (key_words == ChaCha20::key_words) {
      One::template run<ChaCha20, Action::output>(spans, laws, count, key, blocks);
    } else {
      One::template run<Philox, Action::output>(spans, laws, count, key, blocks);
    }
  });
}
