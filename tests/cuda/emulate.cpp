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

template <class Cipher, Output result>
void run(const Span* spans, const TwoPointLaw* laws, int64_t count, const uint32_t* key, int64_t blocks) {
  constexpr int capacity = 4;  // small, so that a few spans are several launches
  const auto launch = [](const auto& plan, int32_t chunks) {
    alignas(16) uint32_t tile[kLanes * 16];
    for (int32_t c = 0; c < chunks; ++c) {
      for (int warp = 0; warp < kWarps; ++warp) {
        one_bit_block<TwoPoint, Cipher, result, Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f16>(plan, c, warp,
                                                                                                 HostWarp{tile});
      }
    }
  };
  for_one_bit_plans<TwoPoint, capacity>(spans, laws, count, key, chunk_for(spans, count, blocks), launch);
}

template <class Cipher>
void run_result(int result, const Span* spans, const TwoPointLaw* laws, int64_t count, const uint32_t* key,
                int64_t blocks) {
  if (result == 0) run<Cipher, Output::values>(spans, laws, count, key, blocks);
  if (result == 1) run<Cipher, Output::bits>(spans, laws, count, key, blocks);
  if (result == 2) run<Cipher, Output::thresholds>(spans, laws, count, key, blocks);
}

}  // namespace
}  // namespace ldpk

// `blocks` is how many thread blocks the device would run at once.
extern "C" void emulate(int result, const ldpk::Span* spans, const ldpk::TwoPointLaw* laws, int64_t count,
                        const uint32_t* key, int key_words, int64_t blocks) {
  if (key_words == ldpk::ChaCha20::key_words) {
    ldpk::run_result<ldpk::ChaCha20>(result, spans, laws, count, key, blocks);
  } else {
    ldpk::run_result<ldpk::Philox>(result, spans, laws, count, key, blocks);
  }
}
