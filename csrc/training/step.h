// SPDX-License-Identifier: Apache-2.0
// A step of a chain: every layer forwards and back, in products.h's two loops. A convolution is either of them, of its
// input at the offsets of the kernel's weights.
#pragma once

#include <cmath>
#include <cstring>
#include <type_traits>

#include "products.h"

namespace ldpk {

template <class M>
struct Step {
  static constexpr int64_t kNoOffset[1] = {0};

  // Planes of `rows` rows of so many numbers, from one distance between rows to another.
  static LDPK_FN void copy_rows(const float* from, int64_t from_row, float* to, int64_t to_row, int64_t rows,
                                int64_t numbers) {
    for (int64_t y = 0; y < rows; ++y) memcpy(to + y * to_row, from + y * from_row, numbers * sizeof(float));
  }

  static LDPK_CALL void convolve(const Layer& l, int64_t examples) {
    const int64_t taps = l.kh * l.kw, wide = l.wide(), plane = l.plane();
    float* factors = l.packed;  // [ci][taps][co]
    for (int64_t o = 0; o < l.co; ++o) {
      for (int64_t i = 0; i < l.ci * taps; ++i) factors[i * l.co + o] = l.weight[o * l.ci * taps + i];
    }
    for (int64_t t = 0; t < taps; ++t) l.offsets[t] = t / l.kw * wide + t % l.kw;
    const int64_t row = aligned(l.reach());
    for (int64_t b = 0; b < examples; ++b) {
      float* in = l.in + b * l.in_pitch();
      if (l.padded != l.in) {
        float* padded = l.padded + b * l.padded_pitch();
        for (int64_t c = 0; c < l.ci; ++c)
          copy_rows(in + c * l.ih * l.iw, l.iw, padded + c * plane + l.ph * wide + l.pw, wide, l.ih, l.iw);
        in = padded;
      }
      combine<M>({in, plane, l.ci, l.offsets, taps, factors, l.co, l.bias, false, l.scratch, row, l.co, l.reach()});
      float* out = l.out + b * l.out_pitch();
      for (int64_t c = 0; c < l.co; ++c) copy_rows(l.scratch + c * row, wide, out + c * l.oh * l.ow, l.ow, l.oh, l.ow);
    }
  }

  static LDPK_CALL void convolve_back(const Layer& l, int64_t examples, float rate) {
    const int64_t taps = l.kh * l.kw, wide = l.wide(), plane = l.plane(), far = l.spread_plane();
    for (int64_t b = 0; b < examples; ++b) {
      const float* slope = l.out_slope + b * l.out_pitch();
      float* spread = l.spread + b * l.co * far + l.margin();
      for (int64_t c = 0; c < l.co; ++c) copy_rows(slope + c * l.oh * l.ow, l.ow, spread + c * far, wide, l.oh, l.ow);
    }
    if (l.in_slope) {
      float* factors = l.packed;  // [co][taps][ci]
      for (int64_t o = 0; o < l.co; ++o) {
        for (int64_t i = 0; i < l.ci; ++i) {
          for (int64_t t = 0; t < taps; ++t) factors[(o * taps + t) * l.ci + i] = l.weight[(o * l.ci + i) * taps + t];
        }
      }
      for (int64_t t = 0; t < taps; ++t) l.offsets[t] = -(t / l.kw * wide + t % l.kw);
      const bool padded = l.padded != l.in;
      for (int64_t b = 0; b < examples; ++b) {
        float* in_slope = l.in_slope + b * l.in_pitch();
        combine<M>({l.spread + b * l.co * far + l.margin(), far, l.co, l.offsets, taps, factors, l.ci, nullptr, false,
                    padded ? l.scratch : in_slope, plane, l.ci, plane});
        for (int64_t c = 0; padded && c < l.ci; ++c)
          copy_rows(l.scratch + c * plane + l.ph * wide + l.pw, wide, in_slope + c * l.ih * l.iw, l.iw, l.ih, l.iw);
      }
    }
    if (l.trains_weight) {
      float* gradient = l.packed;  // [co][kw] of one input and one row of the kernel
      for (int64_t i = 0; i < l.ci; ++i) {
        for (int64_t y = 0; y < l.kh; ++y) {
          const Pairs of{
              l.spread + l.margin(), l.padded + i * plane + y * wide, far, 1, l.co * far, l.padded_pitch(), examples,
              aligned(l.reach())};
          dots<M>(of, l.co, l.kw, gradient, l.kw);
          for (int64_t o = 0; o < l.co; ++o) {
            float* weight = l.weight + (o * l.ci + i) * taps + y * l.kw;
            for (int64_t x = 0; x < l.kw; ++x) weight[x] -= rate * gradient[o * l.kw + x];
          }
        }
      }
    }
    if (l.trains_bias) {
      for (int64_t o = 0; o < l.co; ++o) {
        typename M::V sums{};
        for (int64_t b = 0; b < examples; ++b) {
          const float* spread = l.spread + (b * l.co + o) * far + l.margin();
          for (int64_t p = 0; p < aligned(l.reach()); p += M::width) sums += M::load(spread + p);
        }
        l.bias[o] -= rate * M::sum(sums);
      }
    }
  }

  // A pool's squares lie side by side. The first of the largest is chosen, and NaN is larger than all.
  static LDPK_FN bool larger(float one, float other) { return (one > other) | (one != one); }

  static LDPK_CALL void pool(const Layer& l, int64_t examples) {
    for (int64_t b = 0; b < examples; ++b) {
      const float* in = l.in + b * l.in_pitch();
      float* out = l.out + b * l.out_pitch();
      int32_t* chosen = l.chosen + b * l.out_pitch();
      if (l.halves()) {
        halve(l, in, out, chosen);
        continue;
      }
      for (int64_t i = 0; i < l.out_size(); ++i) {
        const float* first = in + i / l.ow / l.oh * l.ih * l.iw + i / l.ow % l.oh * l.kh * l.iw + i % l.ow * l.kh;
        out[i] = *first;
        chosen[i] = 0;
        for (int32_t j = 1; j < l.kh * l.kh; ++j) {
          const float other = first[j / l.kh * l.iw + j % l.kh];
          if (larger(other, out[i])) out[i] = other, chosen[i] = j;
        }
      }
    }
  }

  static LDPK_CALL void pool_back(const Layer& l, int64_t examples) {
    if (!l.halves()) memset(l.in_slope, 0, examples * l.in_pitch() * sizeof(float));
    for (int64_t b = 0; b < examples; ++b) {
      float* in_slope = l.in_slope + b * l.in_pitch();
      const float* slope = l.out_slope + b * l.out_pitch();
      const int32_t* chosen = l.chosen + b * l.out_pitch();
      if (l.halves()) {
        halve_back(l, slope, chosen, in_slope);
        continue;
      }
      for (int64_t i = 0; i < l.out_size(); ++i) {
        float* first = in_slope + i / l.ow / l.oh * l.ih * l.iw + i / l.ow % l.oh * l.kh * l.iw + i % l.ow * l.kh;
        first[chosen[i] / l.kh * l.iw + chosen[i] % l.kh] = slope[i];
      }
    }
  }

  // Squares of two: first the larger of two rows, then of two neighbours, in loops that registers take.
  static LDPK_CALL void halve(const Layer& l, const float* __restrict in, float* __restrict out,
                              int32_t* __restrict chosen) {
    const int64_t n = l.out_size(), wide = l.iw;
    float* __restrict upper = l.scratch;
    int32_t* __restrict row = reinterpret_cast<int32_t*>(l.scratch + 2 * n);
    for (int64_t y = 0; y < l.ci * l.oh; ++y) {
      for (int64_t x = 0; x < wide; ++x) {
        const float a = in[2 * y * wide + x], b = in[(2 * y + 1) * wide + x];
        const bool below = larger(b, a);
        upper[y * wide + x] = below ? b : a;
        row[y * wide + x] = below ? 2 : 0;
      }
    }
    for (int64_t i = 0; i < n; ++i) {
      const float a = upper[2 * i], b = upper[2 * i + 1];
      const bool right = larger(b, a) | ((a == b) & (row[2 * i + 1] < row[2 * i]));
      out[i] = right ? b : a;
      chosen[i] = right ? row[2 * i + 1] + 1 : row[2 * i];
    }
  }
  static LDPK_CALL void halve_back(const Layer& l, const float* __restrict slope, const int32_t* __restrict chosen,
                                   float* __restrict in_slope) {
    const int64_t n = l.out_size(), wide = l.iw;
    float* __restrict both = l.scratch;
    int32_t* __restrict row = reinterpret_cast<int32_t*>(l.scratch + 2 * n);
    for (int64_t i = 0; i < n; ++i) {
      both[2 * i] = chosen[i] & 1 ? 0.0f : slope[i];
      both[2 * i + 1] = chosen[i] & 1 ? slope[i] : 0.0f;
      row[2 * i] = row[2 * i + 1] = chosen[i] & 2;
    }
    for (int64_t y = 0; y < l.ci * l.oh; ++y) {
      for (int64_t x = 0; x < wide; ++x) {
        const float value = both[y * wide + x];
        const bool below = row[y * wide + x] != 0;
        in_slope[2 * y * wide + x] = below ? 0.0f : value;
        in_slope[(2 * y + 1) * wide + x] = below ? value : 0.0f;
      }
    }
  }

  // In place, as its gradient.
  static LDPK_CALL void relu(const Layer& l, int64_t examples) {
    const int64_t n = examples * l.out_pitch();
    for (int64_t i = 0; i < n; ++i) l.out[i] = l.out[i] < 0.0f ? 0.0f : l.out[i];
  }
  static LDPK_CALL void relu_back(const Layer& l, int64_t examples) {
    const int64_t n = examples * l.out_pitch();
    const float* __restrict out = l.out;
    float* __restrict slope = l.out_slope;
    for (int64_t i = 0; i < n; ++i) slope[i] = out[i] <= 0.0f ? 0.0f : slope[i];
  }

  // f(x, y) for the numbers of a channel in all examples, in registers and then alone.
  template <class X, class Y, class F>
  static LDPK_FN void channel(const Layer& l, int64_t c, int64_t examples, X* x, Y* y, F f) {
    const int64_t n = l.ih * l.iw;
    for (int64_t b = 0; b < examples; ++b) {
      X* of_x = x + b * l.in_pitch() + c * n;
      Y* of_y = y + b * l.in_pitch() + c * n;
      int64_t p = 0;
      for (; p + M::width <= n; p += M::width) {
        using V = typename M::V;
        using Anywhere = typename M::Anywhere;
        V value = M::load(of_y + p);
        f(M::load(of_x + p), value);
        if constexpr (!std::is_const_v<Y>) *reinterpret_cast<Anywhere*>(of_y + p) = value;
      }
      for (; p < n; ++p) {
        float value = of_y[p];
        f(of_x[p], value);
        if constexpr (!std::is_const_v<Y>) of_y[p] = value;
      }
    }
  }

  // A sum whose terms come in registers and alone.
  struct Sum {
    typename M::V many{};
    float few = 0.0f;
    LDPK_FN void operator+=(typename M::V v) { many += v; }
    LDPK_FN void operator+=(float v) { few += v; }
    LDPK_FN float total() const { return M::sum(many) + few; }
  };

  // By the mean and the deviation of the batch. `packed` keeps them for the way back.
  static LDPK_CALL void normalise(const Layer& l, int64_t examples) {
    const float count = static_cast<float>(examples * l.ih * l.iw);
    const float* in = l.in;
    for (int64_t c = 0; c < l.ci; ++c) {
      Sum sum, squares;
      channel(l, c, examples, in, in, [&](auto x, auto) __attribute__((always_inline)) { sum += x; });
      const float mean = sum.total() / count;
      channel(l, c, examples, in, in,
              [&](auto x, auto) __attribute__((always_inline)) { squares += (x - mean) * (x - mean); });
      const float inverse = 1.0f / sqrtf(squares.total() / count + l.epsilon);
      const float scale = l.weight ? l.weight[c] * inverse : inverse;
      const float shift = l.bias ? l.bias[c] : 0.0f;
      l.packed[2 * c] = mean, l.packed[2 * c + 1] = inverse;
      channel(l, c, examples, in, l.out,
              [&](auto x, auto& y) __attribute__((always_inline)) { y = (x - mean) * scale + shift; });
    }
  }
  // Where its input's gradient is wanted, `out_slope` becomes it and is copied there.
  static LDPK_CALL void normalise_back(const Layer& l, int64_t examples, float rate) {
    const float count = static_cast<float>(examples * l.ih * l.iw);
    for (int64_t c = 0; c < l.ci; ++c) {
      const float mean = l.packed[2 * c], inverse = l.packed[2 * c + 1];
      const float scale = l.weight ? l.weight[c] * inverse : inverse;
      Sum slopes, products;
      const float *in = l.in, *slope = l.out_slope;
      channel(l, c, examples, in, slope, [&](auto x, auto y) __attribute__((always_inline)) {
        slopes += y;
        products += y * (x - mean);
      });
      const float along = slopes.total(), across = products.total() * inverse;
      const float level = along / count, tilt = across * inverse / count;
      channel(l, c, examples, in, l.out_slope,
              [&](auto x, auto& y) __attribute__((always_inline)) { y = scale * (y - level - (x - mean) * tilt); });
      if (l.trains_weight) l.weight[c] -= rate * across;
      if (l.trains_bias) l.bias[c] -= rate * along;
    }
    if (l.in_slope) memcpy(l.in_slope, l.out_slope, examples * l.in_pitch() * sizeof(float));
  }

  // A row of the weights is read on into the next, where the input is zero.
  static LDPK_CALL void linear(const Layer& l, int64_t examples) {
    const Pairs of{l.in, l.weight, l.in_pitch(), l.ci, 0, 0, 1, l.in_pitch()};
    dots<M>(of, examples, l.co, l.out, l.out_pitch());
    for (int64_t b = 0; l.bias && b < examples; ++b) {
      for (int64_t o = 0; o < l.co; ++o) l.out[b * l.out_pitch() + o] += l.bias[o];
    }
  }

  static LDPK_CALL void linear_back(const Layer& l, int64_t examples, float rate) {
    float* factors = l.packed;
    if (l.in_slope) {
      for (int64_t b = 0; b < examples; ++b) {
        for (int64_t o = 0; o < l.co; ++o) factors[o * examples + b] = l.out_slope[b * l.out_pitch() + o];
      }
      combine<M>({l.weight, l.ci, l.co, kNoOffset, 1, factors, examples, nullptr, false, l.in_slope, l.in_pitch(),
                  examples, l.ci});
    }
    for (int64_t b = 0; b < examples; ++b) {
      for (int64_t o = 0; o < l.co; ++o) {
        factors[b * l.co + o] = -rate * l.out_slope[b * l.out_pitch() + o];
        if (l.trains_bias) l.bias[o] += factors[b * l.co + o];
      }
    }
    if (l.trains_weight)
      combine<M>(
          {l.in, l.in_pitch(), examples, kNoOffset, 1, factors, l.co, nullptr, true, l.weight, l.ci, l.co, l.ci});
  }

  // The slope of the mean cross-entropy of softmax: (p - label) / examples.
  static LDPK_CALL void loss_back(const Layer& last, const Chain& chain, const int64_t* labels, int64_t examples) {
    for (int64_t b = 0; b < examples; ++b) {
      const float* scores = last.out + b * last.out_pitch();
      float* slope = last.out_slope + b * last.out_pitch();
      float largest = scores[0], sum = 0.0f;
      for (int64_t c = 1; c < chain.classes; ++c) largest = scores[c] > largest ? scores[c] : largest;
      for (int64_t c = 0; c < chain.classes; ++c) sum += slope[c] = expf(scores[c] - largest);
      for (int64_t c = 0; c < chain.classes; ++c)
        slope[c] = (slope[c] / sum - (labels[b] == c ? 1.0f : 0.0f)) / static_cast<float>(examples);
    }
  }

  static LDPK_FN void run(const Chain& chain, const int64_t* labels, int64_t examples) {
    for (int64_t i = 0; i < chain.count; ++i) {
      const Layer& l = chain.layers[i];
      switch (l.kind) {
        case LayerKind::convolution:
          convolve(l, examples);
          break;
        case LayerKind::max_pool:
          pool(l, examples);
          break;
        case LayerKind::relu:
          relu(l, examples);
          break;
        case LayerKind::linear:
          linear(l, examples);
          break;
        case LayerKind::batch_norm:
          normalise(l, examples);
          break;
      }
    }
    loss_back(chain.layers[chain.count - 1], chain, labels, examples);
    for (int64_t i = chain.count - 1; i >= 0; --i) {
      const Layer& l = chain.layers[i];
      if (!l.in_slope && !l.trains_weight && !l.trains_bias) break;
      switch (l.kind) {
        case LayerKind::convolution:
          convolve_back(l, examples, chain.rate);
          break;
        case LayerKind::max_pool:
          pool_back(l, examples);
          break;
        case LayerKind::relu:
          relu_back(l, examples);
          break;
        case LayerKind::linear:
          linear_back(l, examples, chain.rate);
          break;
        case LayerKind::batch_norm:
          normalise_back(l, examples, chain.rate);
          break;
      }
    }
  }
};

}  // namespace ldpk
