// SPDX-License-Identifier: Apache-2.0
// Normalisation by the mean and the deviation of a channel in a batch, or of a group of channels in an example.
#pragma once

#include <cmath>

#include "machine.h"

namespace ldpk {

template <class M>
struct Normalisation {
  using V = typename M::V;

  // f(p) for the places of a register of channels in an example.
  template <class F>
  static LDPK_FN void places(const Layer& l, int64_t c, int64_t b, F f) {
    for (int64_t p = b * l.in_size() + c; p < (b + 1) * l.in_size(); p += l.in_channels()) f(p);
  }

  // By the mean and the deviation of the batch. `factors` keeps them for the way back. Sums are of examples' sums,
  // which rounds less.
  static LDPK_CALL void of_batch(const Layer& l, int64_t examples) {
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
  static LDPK_CALL void of_batch_back(const Layer& l, int64_t examples, float rate) {
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

  // A group's numbers become their sum, in all its places.
  static LDPK_FN void summed(const Layer& l, float* numbers) {
    const int64_t size = l.ci / l.groups;
    for (int64_t first = 0; first < l.ci; first += size) {
      float sum = 0.0f;
      for (int64_t c = first; c < first + size; ++c) sum += numbers[c];
      for (int64_t c = first; c < first + size; ++c) numbers[c] = sum;
    }
  }

  // Of an example, which has its own `factors`; the last two are for the way back.
  struct Factors {
    float *means, *inverses, *scales, *levels, *tilts;
    LDPK_FN Factors(const Layer& l, int64_t b)
        : means(l.factors + 5 * b * l.in_channels()),
          inverses(means + l.in_channels()),
          scales(inverses + l.in_channels()),
          levels(scales + l.in_channels()),
          tilts(levels + l.in_channels()) {}
  };
  static LDPK_CALL void of_groups(const Layer& l, int64_t b) {
    const Factors f(l, b);
    const float count = static_cast<float>(l.ci / l.groups * l.ih * l.iw);
    for (int64_t c = 0; c < l.ci; c += M::width) {
      V sum{};
      places(l, c, b, [&](int64_t p) __attribute__((always_inline)) { sum += M::load(l.in + p); });
      M::store(f.means + c, sum / count);
    }
    summed(l, f.means);
    for (int64_t c = 0; c < l.ci; c += M::width) {
      const V mean = M::load(f.means + c);
      V squares{};
      places(l, c, b, [&](int64_t p) __attribute__((always_inline)) {
        const V x = M::load(l.in + p) - mean;
        squares += x * x;
      });
      M::store(f.inverses + c, squares / count);
    }
    summed(l, f.inverses);
    for (int64_t c = 0; c < l.ci; ++c) {
      f.inverses[c] = 1.0f / sqrtf(f.inverses[c] + l.epsilon);
      f.scales[c] = l.weight ? l.weight[c] * f.inverses[c] : f.inverses[c];
    }
    for (int64_t c = 0; c < l.ci; c += M::width) {
      const V mean = M::load(f.means + c), scale = M::load(f.scales + c), shift = l.bias ? M::load(l.bias + c) : V{};
      places(l, c, b, [&](int64_t p) __attribute__((always_inline)) {
        const V y = (M::load(l.in + p) - mean) * scale + shift;
        M::store(l.out + p, l.rectifies ? M::rectified(y) : y);
      });
    }
  }
  static LDPK_CALL void of_groups_back(const Layer& l, int64_t b) {
    const Factors f(l, b);
    const float count = static_cast<float>(l.ci / l.groups * l.ih * l.iw);
    const float* out_slope = l.out_slope + b * (l.out_slope_apart - l.out_size());
    for (int64_t c = 0; c < l.ci; c += M::width) {
      const V mean = M::load(f.means + c);
      V slopes{}, products{};
      places(l, c, b, [&](int64_t p) __attribute__((always_inline)) {
        const V slope = M::load(out_slope + p);
        slopes += slope;
        products += slope * (M::load(l.in + p) - mean);
      });
      const V inverse = M::load(f.inverses + c), scale = M::load(f.scales + c);
      if (l.trains_weight) M::store(l.weight_gradient + c, M::load(l.weight_gradient + c) + products * inverse);
      if (l.trains_bias) M::store(l.bias_gradient + c, M::load(l.bias_gradient + c) + slopes);
      M::store(f.levels + c, slopes * scale / count);
      M::store(f.tilts + c, products * scale * inverse * inverse / count);
    }
    if (!l.in_slope) return;
    summed(l, f.levels), summed(l, f.tilts);
    float* in_slope = l.in_slope + b * (l.in_slope_apart - l.in_size());
    for (int64_t c = 0; c < l.ci; c += M::width) {
      const V mean = M::load(f.means + c), scale = M::load(f.scales + c);
      const V level = M::load(f.levels + c), tilt = M::load(f.tilts + c);
      places(l, c, b, [&](int64_t p) __attribute__((always_inline)) {
        M::store(in_slope + p, scale * M::load(out_slope + p) - level - (M::load(l.in + p) - mean) * tilt);
      });
    }
  }
};

}  // namespace ldpk
