// SPDX-License-Identifier: Apache-2.0
// Where a chain's layers have their weights and activations.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "chain.h"

namespace ldpk {

// Zeroed memory in pieces that start where registers do. Pieces are given out twice: first to be counted, then for
// good.
class Pieces {
 public:
  template <class T = float>
  T* piece(int64_t count) {
    const int64_t begin = used_;
    used_ += rounded(count * static_cast<int64_t>(sizeof(T)) / 4, kAlign);
    return memory_ ? reinterpret_cast<T*>(start() + begin) : nullptr;
  }
  void allocate() {
    memory_.reset(new float[used_ + kAlign]());
    used_ = 0;
  }

 private:
  float* start() const {
    const auto address = reinterpret_cast<uintptr_t>(memory_.get());
    return reinterpret_cast<float*>((address + 63) / 64 * 64);
  }
  int64_t used_ = 0;
  std::unique_ptr<float[]> memory_;
};

// copy(own, theirs) for each weight of a layer: places in its own order, and in that of the caller's table.
template <class F>
void for_each_weight(const Layer& l, F copy) {
  const int64_t taps = l.kh * l.kw, pixels = l.ih * l.iw;
  if (l.kind == LayerKind::convolution) {
    for (int64_t o = 0; o < l.co; ++o) {
      for (int64_t i = 0; i < l.ci * taps; ++i) copy(i * l.out_channels() + o, o * l.ci * taps + i);
    }
  } else if (l.kind == LayerKind::linear) {
    for (int64_t o = 0; o < l.co; ++o) {
      for (int64_t i = 0; i < l.ci * pixels; ++i)
        copy(o * l.in_size() + i % pixels * l.in_channels() + i / pixels, o * l.ci * pixels + i);
    }
  } else {
    for (int64_t i = 0; i < l.ci; ++i) copy(i, i);
  }
}

// The memory of a chain: what its first layer reads.
inline float* laid_out(std::vector<Layer>& layers, int64_t batch, Pieces& memory) {
  float* images = memory.piece(batch * layers[0].in_numbers());
  int64_t tile_numbers = 0;
  for (const Layer& l : layers) tile_numbers = l.by_tiles() ? std::max(tile_numbers, l.tile_numbers()) : tile_numbers;
  float* tiles = memory.piece(tile_numbers);
  float *out = images, *slope = nullptr;
  int64_t slope_apart = 0;
  bool earlier_trains = false;
  for (size_t i = 0; i < layers.size(); ++i) {
    Layer& l = layers[i];
    const bool convolution = l.kind == LayerKind::convolution, linear = l.kind == LayerKind::linear;
    const bool in_place = l.kind == LayerKind::relu, of_groups = l.kind == LayerKind::group_norm;
    l.in = out, l.in_slope = slope;
    l.weight = l.has_weight ? memory.piece(l.weights()) : nullptr;
    l.bias = l.has_bias ? memory.piece(l.out_channels()) : nullptr;
    l.out = in_place ? l.in : memory.piece(batch * l.out_size());
    earlier_trains |= l.trains_weight || l.trains_bias;
    // Behind a ReLU, which has its memory before. One example's gradients are enough where none waits for the others.
    size_t next = i + 1;
    while (next < layers.size() && layers[next].kind == LayerKind::relu) ++next;
    const bool waits = !l.by_example() || next == layers.size() || !layers[next].by_example();
    l.in_slope_apart = slope_apart;
    l.out_slope_apart = in_place ? slope_apart : waits ? l.out_size() : 0;
    l.out_slope = in_place ? l.in_slope : memory.piece((waits ? batch : 1) * l.out_size());
    l.rectifies = (convolution || of_groups || l.kind == LayerKind::batch_norm) && i + 1 < next;
    if (convolution) {
      if (l.by_tiles()) {
        l.tiles = tiles;
        l.points = memory.piece(kPoints * Layer::points_apart(l.ci, l.out_channels()));
        l.mirrored_points = memory.piece(kPoints * Layer::points_apart(l.co, l.in_channels()));
        l.gradient_points = memory.piece(kPoints * Layer::points_apart(l.in_channels(), l.out_channels()));
      } else {
        l.padded = l.in_planes && !l.ph && !l.pw ? l.in : memory.piece(batch * l.ci * l.padded_plane());
        l.spread = memory.piece(l.co * l.spread_plane());
      }
      l.mirrored = memory.piece(l.co * l.kh * l.kw * l.in_channels());
    }
    l.weight_gradient = l.sums_gradients() ? memory.piece(l.weights()) : nullptr;
    l.bias_gradient = l.sums_gradients() ? memory.piece(l.out_channels()) : nullptr;
    l.factors = memory.piece(linear ? batch * l.co : (of_groups ? batch * 5 : 3) * l.in_channels());
    l.chosen = l.kind == LayerKind::max_pool ? memory.piece<int32_t>(batch * l.out_size()) : nullptr;
    out = l.out, slope = earlier_trains ? l.out_slope : nullptr, slope_apart = l.out_slope_apart;
  }
  return images;
}

}  // namespace ldpk
