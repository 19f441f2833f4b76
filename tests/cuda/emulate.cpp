// SPDX-License-Identifier: Apache-2.0
// The CUDA kernels on the host, for the tests: the same plans and steps, lane by lane. Compiled by
// tests/test_cuda_static.py.
#include <new>

#include "../../csrc/cuda/cells.cuh"

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

constexpr int kCapacity = 4;  // small, so that a few spans are several launches

// block(plan, c, warp, run) for every warp of a launch.
template <class Plan, class Block>
void each_warp(const Plan& plan, int32_t chunks, Block block) {
  alignas(16) uint32_t tile[kLanes * 32];
  for (int32_t c = 0; c < chunks; ++c) {
    for (int warp = 0; warp < kWarps; ++warp) block(plan, c, warp, HostWarp{tile});
  }
}

template <class Shape, class Cipher, Output result>
void run(const Span* spans, const void* laws, int64_t count, const uint32_t* key, int64_t blocks) {
  const auto launch = [](const auto& plan, int32_t chunks) {
    each_warp(plan, chunks, [](const auto&... a) {
      chunk_block<Shape, Cipher, result, Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f16>(a...);
    });
  };
  const auto* of_shape = static_cast<const typename Shape::Law*>(laws);
  using Plan = PlanOf<Shape, kCapacity>;
  for_chunked_plans<Plan>(spans, of_shape, count, key, chunk_for(spans, count, blocks), launch);
}

// The mechanisms of another shape have emulations of their own.
template <class Shape>
constexpr bool emulated = requires { InChunks<Shape>::few; };

}  // namespace
}  // namespace ldpk

// A mechanism and an output by their names in the registry. `blocks` is how many thread blocks the device would run at
// once.
extern "C" void emulate(const char* mechanism, const char* output, const ldpk::Span* spans, const void* laws,
                        int64_t count, const uint32_t* key, int key_words, int64_t blocks) {
  using namespace ldpk;
  Registry::each_action([&](auto action) {
    using Action = decltype(action);
    using Shape = typename Action::Entry::Shape;
    if (Action::Entry::name != mechanism || Action::output_name != output) return;
    if constexpr (emulated<Shape> && Action::output != Output::turns) {
      if (key_words == ChaCha20::key_words) {
        run<Shape, ChaCha20, Action::output>(spans, laws, count, key, blocks);
      } else {
        run<Shape, Philox, Action::output>(spans, laws, count, key, blocks);
      }
    }
  });
}

// How a circle turns for weights in fp32, and the cells of draws: by the kernels and by the definition, n of each.
extern "C" void decide_cells(int hybrid, const void* law, const float* x, const uint32_t* draws, int64_t n,
                             int32_t* turns, uint32_t* cells) {
  using namespace ldpk;
  const auto run = [&]<template <class> class Mechanism>(const auto& defined) {
    using Planned = typename PlanOf<Cells<Mechanism>, 1>::Law;
    const CellsLaw<float, Planned> ours{Planned(defined)};
    for (int64_t i = 0; i < n; ++i) {
      turns[i] = ours.turn(x[i]);
      turns[n + i] = Piecewise<ScalarLanes>::turn(x[i], Mechanism<ScalarLanes>::circle(defined));
      cells[i] = ours.cell(turns[n + i], draws[i]);
      cells[n + i] = Mechanism<ScalarLanes>::cell(turns[n + i], draws[i], defined);
    }
  };
  if (hybrid) {
    run.template operator()<Hybrid>(*static_cast<const HybridLaw*>(law));
  } else {
    run.template operator()<Piecewise>(*static_cast<const PiecewiseLaw*>(law));
  }
}

// The two-point mechanism's guess, for weights without NaN and high draws, from -2^15 to 2^15 - 1.
extern "C" void guess(const ldpk::TwoPointLaw* law, const float* x, const float* draws, int64_t count, float* out) {
  const ldpk::TwoPointGuess guess(*law);
  for (int64_t i = 0; i < count; ++i) out[i] = guess(x[i] - guess.center, draws[i]);
}
