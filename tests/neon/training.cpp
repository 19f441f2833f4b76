// SPDX-License-Identifier: Apache-2.0
// A step of local training against the definition: the gradient of a loss in fp64, by differences of its values.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "training/memory.h"

#ifndef STEP
#define STEP train_step_plain
#define WIDTH 4
#endif

namespace {
using namespace ldpk;

constexpr int64_t kExamples = 3, kClasses = 6;

// [examples][channels][rows][columns], and weights and biases of each layer as PyTorch has them.
struct Numbers {
  int64_t channels, height, width;
  std::vector<double> of;
  double at(int64_t b, int64_t c, int64_t y, int64_t x) const {
    const bool inside = y >= 0 && y < height && x >= 0 && x < width;
    return inside ? of[((b * channels + c) * height + y) * width + x] : 0.0;
  }
};
struct Weights {
  std::vector<double> weight, bias;
};

Numbers forwards(const Layer& l, const Weights& w, const Numbers& in) {
  Numbers out{l.co, l.oh, l.ow, std::vector<double>(kExamples * l.co * l.oh * l.ow)};
  std::vector<double> means(kExamples * l.co), scales(kExamples * l.co);  // [examples][channels]
  // A batch's normalisation has the channel of all examples as its set of numbers, a group's a few of one example.
  const bool of_batch = l.kind == LayerKind::batch_norm, normalises = of_batch || l.kind == LayerKind::group_norm;
  const int64_t pixels = l.ih * l.iw, apart = l.ci * pixels, size = l.groups ? l.ci / l.groups : 1;
  for (int64_t i = 0; normalises && i < kExamples * l.ci; ++i) {
    const int64_t c = i % l.ci, from = c / size * size, own = i / l.ci;
    const double count = (of_batch ? kExamples : 1) * size * pixels;
    const auto each = [&](auto f) {
      for (int64_t b = of_batch ? 0 : own; b < (of_batch ? kExamples : own + 1); ++b) {
        for (int64_t p = 0; p < size * pixels; ++p) f(in.of[b * apart + from * pixels + p]);
      }
    };
    double squares = 0.0;
    each([&](double number) { means[i] += number / count; });
    each([&](double number) { squares += (number - means[i]) * (number - means[i]); });
    scales[i] = w.weight[c] / std::sqrt(squares / count + l.epsilon);
  }
  for (int64_t i = 0; i < static_cast<int64_t>(out.of.size()); ++i) {
    const int64_t x = i % l.ow, y = i / l.ow % l.oh, o = i / (l.ow * l.oh) % l.co, b = i / (l.ow * l.oh * l.co);
    double& number = out.of[i];
    if (l.kind == LayerKind::relu) number = std::fmax(in.of[i], 0.0);
    if (l.kind == LayerKind::max_pool) {
      number = -INFINITY;
      for (int64_t t = 0; t < l.kh * l.kw; ++t)
        number = std::fmax(number, in.at(b, o, y * l.kh + t / l.kw, x * l.kw + t % l.kw));
    }
    if (l.kind == LayerKind::convolution) {
      number = w.bias[o];
      for (int64_t t = 0; t < l.ci * l.kh * l.kw; ++t)
        number += w.weight[o * l.ci * l.kh * l.kw + t] *
                  in.at(b, t / (l.kh * l.kw), y + t / l.kw % l.kh - l.ph, x + t % l.kw - l.pw);
    }
    if (l.kind == LayerKind::linear) {
      const int64_t inputs = l.ci * l.ih * l.iw;
      number = w.bias[o];
      for (int64_t t = 0; t < inputs; ++t) number += w.weight[o * inputs + t] * in.of[b * inputs + t];
    }
    if (normalises) number = (in.of[i] - means[b * l.co + o]) * scales[b * l.co + o] + w.bias[o];
  }
  return out;
}

double loss(const std::vector<Layer>& layers, const std::vector<Weights>& weights, Numbers numbers,
            const std::vector<int64_t>& labels) {
  for (size_t i = 0; i < layers.size(); ++i) numbers = forwards(layers[i], weights[i], numbers);
  double total = 0.0;
  for (int64_t b = 0; b < kExamples; ++b) {
    double sum = 0.0;
    for (int64_t c = 0; c < kClasses; ++c) sum += std::exp(numbers.at(b, c, 0, 0));
    total += (std::log(sum) - numbers.at(b, labels[b], 0, 0)) / kExamples;
  }
  return total;
}

double draw() {
  static uint64_t state = 1;
  state = state * 6364136223846793005u + 1442695040888963407u;
  return static_cast<double>(static_cast<int64_t>(state) >> 11) / (int64_t{1} << 52);
}
}  // namespace

int main() {
  std::vector<Layer> layers;
  std::vector<Weights> weights;
  int64_t channels = 2, height = 9, width = 10;
  const Numbers images{channels, height, width, [] {
                         std::vector<double> of(kExamples * 2 * 9 * 10);
                         for (double& x : of) x = static_cast<float>(draw());
                         return of;
                       }()};
  const std::vector<int64_t> labels{4, 0, 4};
  const auto add = [&](LayerKind kind, int64_t outputs, int64_t kh, int64_t kw, int64_t ph, int64_t pw) {
    Layer l{};
    l.kind = kind, l.width = WIDTH;
    l.ci = channels, l.ih = height, l.iw = width;
    l.co = outputs ? outputs : channels, l.oh = height, l.ow = width;
    l.kh = kh, l.kw = kw, l.ph = ph, l.pw = pw;
    if (kind == LayerKind::convolution) l.oh = height + 2 * ph - kh + 1, l.ow = width + 2 * pw - kw + 1;
    if (kind == LayerKind::max_pool) l.oh = height / kh, l.ow = width / kw;
    if (kind == LayerKind::linear) l.oh = l.ow = 1;
    l.epsilon = 1e-5f, l.groups = kind == LayerKind::group_norm ? 3 : 0;
    const int64_t per_output = kind == LayerKind::convolution ? l.ci * kh * kw : l.ci * l.ih * l.iw;
    const bool normalises = kind == LayerKind::batch_norm || kind == LayerKind::group_norm;
    const int64_t count = normalises ? l.co : outputs ? outputs * per_output : 0;
    l.has_weight = l.has_bias = l.trains_weight = l.trains_bias = count > 0;
    Weights w{std::vector<double>(count), std::vector<double>(count ? l.co : 0)};
    for (double& x : w.weight) x = static_cast<float>(draw() / 3);
    for (double& x : w.bias) x = static_cast<float>(draw() / 3);
    layers.push_back(l), weights.push_back(w);
    channels = l.co, height = l.oh, width = l.ow;
  };
  add(LayerKind::convolution, 8, 3, 3, 1, 1);
  add(LayerKind::batch_norm, 0, 1, 1, 0, 0);
  add(LayerKind::relu, 0, 1, 1, 0, 0);
  add(LayerKind::convolution, 9, 3, 3, 1, 1);
  add(LayerKind::group_norm, 0, 1, 1, 0, 0);
  add(LayerKind::convolution, 8, 5, 5, 2, 2);
  add(LayerKind::max_pool, 0, 2, 2, 0, 0);
  add(LayerKind::convolution, 9, 3, 2, 0, 1);
  add(LayerKind::relu, 0, 1, 1, 0, 0);
  add(LayerKind::linear, kClasses, 1, 1, 0, 0);

  const auto by_tiles = [](const Layer& l) { return l.by_tiles(); };
  if (std::count_if(layers.begin(), layers.end(), by_tiles) != 2) return 1;

  const double rate = 1.0, step = 1e-6;
  layers[0].in_planes = true;
  Pieces memory;
  laid_out(layers, kExamples, memory);
  memory.allocate();
  float* in = laid_out(layers, kExamples, memory);
  for (size_t i = 0; i < images.of.size(); ++i) in[i] = static_cast<float>(images.of[i]);
  for (size_t i = 0; i < layers.size(); ++i) {
    const Layer& l = layers[i];
    if (!l.has_weight) continue;
    for_each_weight(l,
                    [&](int64_t own, int64_t place) { l.weight[own] = static_cast<float>(weights[i].weight[place]); });
    for (int64_t o = 0; o < l.co; ++o) l.bias[o] = static_cast<float>(weights[i].bias[o]);
  }
  STEP({layers.data(), static_cast<int64_t>(layers.size()), kClasses, static_cast<float>(rate)}, labels.data(),
       kExamples);

  double worst = 0.0, furthest = 0.0;  // of a part of the weights, and all biases
  const auto compare = [&](double& weight, float found) {
    const double before = weight;
    weight = before + step;
    const double above = loss(layers, weights, images, labels);
    weight = before - step;
    const double below = loss(layers, weights, images, labels);
    weight = before;
    const double way = rate * (above - below) / (2 * step);
    worst = std::fmax(worst, std::fabs(found - (before - way))), furthest = std::fmax(furthest, std::fabs(way));
  };
  for (size_t i = 0; i < layers.size(); ++i) {
    const Layer& l = layers[i];
    if (!l.has_weight) continue;
    for_each_weight(l, [&](int64_t own, int64_t place) {
      if (place % 17 == 0) compare(weights[i].weight[place], l.weight[own]);
    });
    for (int64_t o = 0; o < l.co; ++o) compare(weights[i].bias[o], l.bias[o]);
  }
  std::printf("a step of training: %.1e off, of a way of %.2f\n", worst, furthest);
  return worst < 5e-6 * furthest && furthest > 0.01 ? 0 : 1;
}
