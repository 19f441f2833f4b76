// SPDX-License-Identifier: Apache-2.0
// A step of a chain: every layer forwards and back. Layers between two that look at the whole batch take one example
// after another, whose activations stay in the cache.
#pragma once

#include <cmath>
#include <cstring>

#include "convolution_layer.h"
#include "products.h"

namespace ldpk {

template <class M>
struct Step {
  using V = typename M::V;
  using I = typename M::I;
  using C = ConvolutionLayer<M>;

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

  // f(p) for the places of a register of channels in an example.
  template <class F>
  static LDPK_FN void places(const Layer& l, int64_t c, int64_t b, F f) {
    for (int64_t p = b * l.in_size() + c; p < (b + 1) * l.in_size(); p += l.in_channels()) f(p);
  }

  // By the mean and the deviation of the batch. `factors` keeps them for the way back. Sums are of examples' sums,
  // which rounds less.
  static LDPK_CALL void normalise(const Layer& l, int64_t examples) {
    const float count = static_cast<float>(examples * l.ih * l.iw);
    float *means = l.factors, *inverses = means + l.in_channels(), *scales = inverses + l.in_channels();
    for (int64_t c = 0; c < l.ci; c += M::width) {
      V sum{}, squares{};
      for (int64_t b = 0; b < examples; ++b) {
        V of{};
        places(l, c, b, [&](int64_t p) __attribute__((always_inline)) { of += M::load(l.in + p); });
        sum += of;
      }
      const V mean = sum / count;
      for (int64_t b = 0; b < examples; ++b) {
        V of{};
        places(l, c, b, [&](int64_t p) __attribute__((always_inline)) {
          const V x = M::load(l.in + p) - mean;
          of += x * x;
        });
        squares += of;
      }
      M::store(means + c, mean);
      M::store(inverses + c, squares / count + l.epsilon);
    }
    for (int64_t c = 0; c < l.ci; ++c) {  // channels that only fill a register up stay zero
      inverses[c] = 1.0f / sqrtf(inverses[c]);
      scales[c] = l.weight ? l.weight[c] * inverses[c] : inverses[c];
    }
    for (int64_t c = 0; c < l.ci; c += M::width) {
      const V mean = M::load(means + c), scale = M::load(scales + c), shift = l.bias ? M::load(l.bias + c) : V{};
      for (int64_t b = 0; b < examples; ++b)
        places(l, c, b, [&](int64_t p) __attribute__((always_inline)) {
          const V y = (M::load(l.in + p) - mean) * scale + shift;
          M::store(l.out + p, l.rectifies ? M::rectified(y) : y);
        });
    }
  }
  static LDPK_CALL void normalise_back(const Layer& l, int64_t examples, float rate) {
    const float count = static_cast<float>(examples * l.ih * l.iw);
    const float *means = l.factors, *inverses = means + l.in_channels(), *scales = inverses + l.in_channels();
    for (int64_t c = 0; c < l.ci; c += M::width) {
      const V mean = M::load(means + c), inverse = M::load(inverses + c), scale = M::load(scales + c);
      V along{}, across{};
      for (int64_t b = 0; b < examples; ++b) {
        V slopes{}, products{};
        places(l, c, b, [&](int64_t p) __attribute__((always_inline)) {
          const V slope = M::load(l.out_slope + p);
          slopes += slope;
          products += slope * (M::load(l.in + p) - mean);
        });
        along += slopes, across += products;
      }
      across *= inverse;
      const V level = along / count, tilt = across * inverse / count;
      for (int64_t b = 0; l.in_slope && b < examples; ++b)
        places(l, c, b, [&](int64_t p) __attribute__((always_inline)) {
          M::store(l.in_slope + p, scale * (M::load(l.out_slope + p) - level - (M::load(l.in + p) - mean) * tilt));
        });
      if (l.trains_weight) M::store(l.weight + c, M::load(l.weight + c) - rate * across);
      if (l.trains_bias) M::store(l.bias + c, M::load(l.bias + c) - rate * along);
    }
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
          if (l.kind == LayerKind::relu && !(j > 0 && layers[j - 1].rectifies)) relu(l, b);
        }
      }
      if (end > i) continue;
      if (layers[i].kind == LayerKind::convolution) C::forwards(layers[i], 0, examples);
      if (layers[i].kind == LayerKind::linear) linear(layers[i], examples);
      if (layers[i].kind == LayerKind::batch_norm) normalise(layers[i], examples);
      end = i + 1;
    }
  }

  static LDPK_CALL void back(const Chain& chain, int64_t examples) {
    const Layer* layers = chain.layers;
    int64_t first = 0;  // that trains
    while (!layers[first].trains_weight && !layers[first].trains_bias) ++first;
    for (int64_t end = chain.count, i; end > first; end = i) {
      for (i = end; i > first && layers[i - 1].by_example();) --i;
      if (i == end) {
        const Layer& l = layers[--i];
        if (l.kind == LayerKind::convolution) C::begin_back(l), C::back(l, 0, examples), C::end_back(l, chain.rate);
        if (l.kind == LayerKind::linear) linear_back(l, examples, chain.rate);
        if (l.kind == LayerKind::batch_norm) normalise_back(l, examples, chain.rate);
        continue;
      }
      for (int64_t j = i; j < end; ++j) {
        if (layers[j].kind == LayerKind::convolution) C::begin_back(layers[j]);
      }
      for (int64_t b = 0; b < examples; ++b) {
        for (int64_t j = end - 1; j >= i; --j) {
          const Layer& l = layers[j];
          if (l.kind == LayerKind::convolution) C::back(l, b, 1);
          if (l.kind == LayerKind::max_pool) pool_back(l, b);
          if (l.kind == LayerKind::relu) relu_back(l, b);
        }
      }
      for (int64_t j = i; j < end; ++j) {
        if (layers[j].kind == LayerKind::convolution) C::end_back(layers[j], chain.rate);
      }
    }
  }

  static LDPK_FN void run(const Chain& chain, const int64_t* labels, int64_t examples) {
    forwards(chain, examples);
    loss_back(chain.layers[chain.count - 1], chain, labels, examples);
    back(chain, examples);
  }
};

}  // namespace ldpk
