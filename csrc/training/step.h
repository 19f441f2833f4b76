// SPDX-License-Identifier: Apache-2.0
// A step of a chain: every layer forwards and back. Layers between two that look at the whole batch take one example
// after another, whose activations stay in the cache.
#pragma once

#include <cmath>
#include <cstring>

#include "convolution_layer.h"
#include "normalisation.h"
#include "products.h"

namespace ldpk {

template <class M>
struct Step {
  using V = typename M::V;
  using I = typename M::I;
  using C = ConvolutionLayer<M>;
  using N = Normalisation<M>;

  // A pool's squares lie side by side. The first of the largest is chosen, and NaN is larger than all.
  static LDPK_CALL void pool(const Layer& l, int64_t b) {
    const int64_t channels = l.in_channels(), row = l.iw * channels;
    const float* in = l.in + b * l.in_size();
    float* out = l.out + b * l.out_size();
    int32_t* chosen = l.chosen + b * l.out_size();
    for (int64_t y = 0; y < l.oh; ++y) {
      for (int64_t x = 0; x < l.ow; ++x) {
        for (int64_t c = 0; c < channels; c += M::width, out += M::width, chosen += M::width) {
          const float* first = in + y * l.kh * row + x * l.kw * channels + c;
          V largest = M::load(first);
          I place{};
          for (int32_t i = 0, j = 0; i < l.kh; ++i) {
            for (int64_t k = 0; k < l.kw; ++k, ++j) {
              const V other = M::load(first + i * row + k * channels);
              const I larger = (other > largest) | (other != other);
              largest = larger ? other : largest;
              place = larger ? j - I{} : place;
            }
          }
          M::store(out, largest);
          M::store(chosen, place);
        }
      }
    }
  }

  static LDPK_CALL void pool_back(const Layer& l, int64_t b) {
    const int64_t channels = l.in_channels(), row = l.iw * channels;
    float* in_slope = l.in_slope + b * l.in_slope_apart;
    const float* slope = l.out_slope + b * l.out_slope_apart;
    const int32_t* chosen = l.chosen + b * l.out_size();
    if (l.oh * l.kh < l.ih || l.ow * l.kw < l.iw) memset(in_slope, 0, l.in_size() * sizeof(float));
    for (int64_t y = 0; y < l.oh; ++y) {
      for (int64_t x = 0; x < l.ow; ++x) {
        for (int64_t c = 0; c < channels; c += M::width, slope += M::width, chosen += M::width) {
          float* first = in_slope + y * l.kh * row + x * l.kw * channels + c;
          const V value = M::load(slope);
          const I place = M::load(chosen);
          for (int32_t i = 0, j = 0; i < l.kh; ++i) {
            for (int64_t k = 0; k < l.kw; ++k, ++j)
              M::store(first + i * row + k * channels, place == j - I{} ? value : V{});
          }
        }
      }
    }
  }

  // In place, as its gradient. Where the layer before `rectifies`, it is done.
  static LDPK_CALL void relu(const Layer& l, int64_t b) {
    float* out = l.out + b * l.out_size();
    for (int64_t i = 0; i < l.out_size(); i += M::width) M::store(out + i, M::rectified(M::load(out + i)));
  }
  static LDPK_CALL void relu_back(const Layer& l, int64_t b) {
    const float* out = l.out + b * l.out_size();
    float* slope = l.out_slope + b * l.out_slope_apart;
    for (int64_t i = 0; i < l.out_size(); i += M::width)
      M::store(slope + i, M::load(out + i) <= V{} ? V{} : M::load(slope + i));
  }

  static LDPK_CALL void linear(const Layer& l, int64_t examples) {
    dots<M>({l.in, l.weight, l.in_size(), l.in_size(), l.in_size()}, examples, l.co, l.out, l.out_size());
    for (int64_t b = 0; l.bias && b < examples; ++b) {
      for (int64_t o = 0; o < l.co; ++o) l.out[b * l.out_size() + o] += l.bias[o];
    }
  }

  static LDPK_CALL void linear_back(const Layer& l, int64_t examples, float rate) {
    const int64_t size = l.in_size();
    float* factors = l.factors;
    if (l.in_slope) {
      for (int64_t b = 0; b < examples; ++b) {
        for (int64_t o = 0; o < l.co; ++o) factors[o * examples + b] = l.out_slope[b * l.out_size() + o];
      }
      combine<M>({l.weight, size, l.co, factors, examples, false, l.in_slope, size, examples, size});
    }
    for (int64_t b = 0; b < examples; ++b) {
      for (int64_t o = 0; o < l.co; ++o) {
        factors[b * l.co + o] = -rate * l.out_slope[b * l.out_size() + o];
        if (l.trains_bias) l.bias[o] += factors[b * l.co + o];
      }
    }
    if (l.trains_weight) combine<M>({l.in, size, examples, factors, l.co, true, l.weight, size, l.co, size});
  }

  // The slope of the mean cross-entropy of softmax: (p - label) / examples.
  static LDPK_CALL void loss_back(const Layer& last, const Chain& chain, const int64_t* labels, int64_t examples) {
    for (int64_t b = 0; b < examples; ++b) {
      const float* scores = last.out + b * last.out_size();
      float* slope = last.out_slope + b * last.out_size();
      float largest = scores[0], sum = 0.0f;
      for (int64_t c = 1; c < chain.classes; ++c) largest = scores[c] > largest ? scores[c] : largest;
      for (int64_t c = 0; c < chain.classes; ++c) sum += slope[c] = expf(scores[c] - largest);
      for (int64_t c = 0; c < chain.classes; ++c)
        slope[c] = (slope[c] / sum - (labels[b] == c ? 1.0f : 0.0f)) / static_cast<float>(examples);
    }
  }

  static LDPK_CALL void forwards(const Chain& chain, int64_t examples) {
    const Layer* layers = chain.layers;
    for (int64_t i = 0; i < chain.count; ++i) {
      if (layers[i].kind == LayerKind::convolution) C::begin(layers[i]);
    }
    for (int64_t i = 0, end; i < chain.count; i = end) {
      for (end = i; end < chain.count && layers[end].by_example();) ++end;
      for (int64_t b = 0; end > i && b < examples; ++b) {
        for (int64_t j = i; j < end; ++j) {
          const Layer& l = layers[j];
          if (l.kind == LayerKind::convolution) C::forwards(l, b, 1);
          if (l.kind == LayerKind::max_pool) pool(l, b);
          if (l.kind == LayerKind::group_norm) N::of_groups(l, b);
          if (l.kind == LayerKind::relu && !(j > 0 && layers[j - 1].rectifies)) relu(l, b);
        }
      }
      if (end > i) continue;
      if (layers[i].kind == LayerKind::convolution) C::forwards(layers[i], 0, examples);
      if (layers[i].kind == LayerKind::linear) linear(layers[i], examples);
      if (layers[i].kind == LayerKind::batch_norm) N::of_batch(layers[i], examples);
      end = i + 1;
    }
  }

  // Before the examples of a step go back, and behind them: for layers whose gradients are sums over examples.
  static LDPK_CALL void begin_back(const Layer& l) {
    if (l.kind == LayerKind::convolution) C::begin_back(l);
    if (!l.sums_gradients()) return;
    if (l.trains_weight) memset(l.weight_gradient, 0, l.weights() * sizeof(float));
    if (l.trains_bias) memset(l.bias_gradient, 0, l.out_channels() * sizeof(float));
  }
  static LDPK_FN void descend(float* weight, const float* gradient, int64_t count, float rate) {
    for (int64_t i = 0; i < count; i += M::width)
      M::store(weight + i, M::load(weight + i) - rate * M::load(gradient + i));
  }
  static LDPK_CALL void end_back(const Layer& l, float rate) {
    if (l.kind == LayerKind::convolution) C::end_back(l);
    if (!l.sums_gradients()) return;
    if (l.trains_weight) descend(l.weight, l.weight_gradient, l.weights(), rate);
    if (l.trains_bias) descend(l.bias, l.bias_gradient, l.out_channels(), rate);
  }

  static LDPK_CALL void back(const Chain& chain, int64_t examples) {
    const Layer* layers = chain.layers;
    int64_t first = 0;  // that trains
    while (!layers[first].trains_weight && !layers[first].trains_bias) ++first;
    for (int64_t end = chain.count, i; end > first; end = i) {
      for (i = end; i > first && layers[i - 1].by_example();) --i;
      if (i == end) {
        const Layer& l = layers[--i];
        begin_back(l);
        if (l.kind == LayerKind::convolution) C::back(l, 0, examples);
        if (l.kind == LayerKind::linear) linear_back(l, examples, chain.rate);
        if (l.kind == LayerKind::batch_norm) N::of_batch_back(l, examples, chain.rate);
        end_back(l, chain.rate);
        continue;
      }
      for (int64_t j = i; j < end; ++j) begin_back(layers[j]);
      for (int64_t b = 0; b < examples; ++b) {
        for (int64_t j = end - 1; j >= i; --j) {
          const Layer& l = layers[j];
          if (l.kind == LayerKind::convolution) C::back(l, b, 1);
          if (l.kind == LayerKind::max_pool) pool_back(l, b);
          if (l.kind == LayerKind::group_norm) N::of_groups_back(l, b);
          if (l.kind == LayerKind::relu) relu_back(l, b);
        }
      }
      for (int64_t j = i; j < end; ++j) end_back(layers[j], chain.rate);
    }
  }

  static LDPK_FN void run(const Chain& chain, const int64_t* labels, int64_t examples) {
    forwards(chain, examples);
    loss_back(chain.layers[chain.count - 1], chain, labels, examples);
    back(chain, examples);
  }
};

}  // namespace ldpk
