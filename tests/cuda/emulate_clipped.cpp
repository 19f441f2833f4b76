// SPDX-License-Identifier: Apache-2.0
// The kernels of clipped sums of csrc/cuda on the host, thread by thread. Compiled by tests/test_clipped_noise_cuda.py.
#include <vector>

#include "../../csrc/cuda/clipped_noise.cuh"

namespace ldpk {
namespace {

struct OnHost {
  void squares(const ClippedPlan& plan, int32_t blocks) const {
    for (int32_t b = 0; b < blocks; ++b) {
      SquaresTile tile;
      for (int t = 0; t < kClippedThreads; ++t) SquaresThread(plan, b, t).square(tile);
      for (int t = 0; t < kClippedThreads; ++t) SquaresThread(plan, b, t).fold(tile);
      for (int t = 0; t < kClippedThreads; ++t) SquaresThread(plan, b, t).finish(tile);
    }
  }
  void norms(const ClippedPlan& plan, int32_t blocks) const {
    for (int64_t row = 0; row < int64_t{blocks} * kClippedThreads; ++row) {
      if (row < plan.rows) norms_of_row(plan, row);
    }
  }
  template <bool grid>
  void sums(const ClippedPlan& plan, int32_t blocks) const {
    for (int32_t b = 0; b < blocks; ++b) {
      const ClippedBlock s(plan, b);
      with_dtype(s.span, [&](auto dtype) {
        using Thread = SumsThread<grid, decltype(dtype)::value>;
        static typename Thread::Tile tile;
        std::vector<Thread> threads;
        for (int t = 0; t < kClippedThreads; ++t) threads.emplace_back(plan, s, t);
        for (int round = 0; round < threads[0].rounds(); ++round) {
          for (Thread& t : threads) t.stage(round, tile);
          for (Thread& t : threads) t.accumulate(round, tile);
          for (Thread& t : threads) t.add(round, tile);
        }
      });
    }
  }
  template <bool grid>
  void numbers(const ClippedPlan& plan, int32_t blocks) const {
    for (int32_t b = 0; b < blocks; ++b) {
      const ClippedBlock block(plan, b);
      with_dtype(block.span, [&](auto dtype) {
        using Thread = NumbersThread<grid, decltype(dtype)::value>;
        typename Thread::Tile tile;
        const auto each = [&](auto step) {
          for (int t = 0; t < kNumberThreads; ++t) step(Thread{plan, block, t});
        };
        each([&](const Thread& thread) { thread.add(tile); });
        for (int half = kNumberLanes / 2; half > 0; half /= 2)
          each([&](const Thread& thread) { thread.fold(tile, half); });
        each([&](const Thread& thread) { thread.finish(tile); });
      });
    }
  }
  template <class Cipher, bool grid>
  void noise(const ClippedPlan& plan, int32_t blocks) const {
    for (int32_t b = 0; b < blocks; ++b) {
      for (int t = 0; t < kClippedThreads; ++t) noise_of_columns<Cipher, grid>(plan, b, t);
    }
  }
};

}  // namespace
}  // namespace ldpk

extern "C" void emulate(const ldpk::Span* spans, int64_t count, const double* bounds, int64_t layers, int64_t rows,
                        const ldpk::ClippedNoise* noise, const uint32_t* key, int key_words, double* norms) {
  std::vector<double> workspace(ldpk::clipped_workspace(spans, count, rows, layers), 1e300);
  const ldpk::ClippedCall call{spans, count, bounds, layers, rows, *noise, key, norms, workspace.data()};
  if (key_words == ldpk::ChaCha20::key_words) {
    call.run<ldpk::ChaCha20>(ldpk::OnHost{});
  } else {
    call.run<ldpk::Philox>(ldpk::OnHost{});
  }
}
