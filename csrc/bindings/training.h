// SPDX-License-Identifier: Apache-2.0
// Local training of one client: shapes are worked out and checked here, so that a step trusts them.
#pragma once

#include <algorithm>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../training/memory.h"
#include "call.h"

namespace ldpk {

struct NamedStep {
  const char* name;
  int64_t width;  // numbers in a register
  TrainStep step;
};

// Of the instruction sets that this machine has, the best first.
inline const std::vector<NamedStep>& train_steps() {
  static const std::vector<NamedStep> available = [] {
    std::vector<NamedStep> found;
#if defined(__x86_64__)
    const X86 machine = this_x86();
    if (machine.avx512()) found.push_back({"avx512", 16, train_step_avx512});
    if (machine.fused()) found.push_back({"avx2", 8, train_step_avx2});
#else
    found.push_back({"plain", 4, train_step_plain});
#endif
    return found;
  }();
  return available;
}

inline const NamedStep& train_step_named(const std::string& name) {
  for (const NamedStep& one : train_steps()) {
    if (name.empty() || name == one.name) return one;
  }
  throw std::invalid_argument("this machine has no '" + name + "' kernels for training");
}

// A layer as Python describes it: ("convolution", kernel height and width, padding likewise), ("max_pool", side),
// ("relu",), ("linear",), ("batch_norm",), ("group_norm", groups); its weights and biases, which are read and written;
// whether each trains; what a normalisation adds to the variance.
struct LayerOf {
  std::string kind;
  std::vector<int64_t> sizes;
  std::optional<Table<float>> weight, bias;
  bool trains_weight, trains_bias;
  float epsilon;
};

// The layer's shapes behind one of these outputs; a linear layer gives channels of one number.
inline Layer shaped(const LayerOf& of, int64_t channels, int64_t height, int64_t width, int64_t in_register) {
  Layer l{};
  l.width = in_register;
  const auto wrong = [&](const char* what) -> void { throw std::invalid_argument(of.kind + " layer: " + what); };
  l.ci = l.co = channels, l.ih = l.oh = height, l.iw = l.ow = width;
  l.kh = l.kw = 1;
  l.has_weight = of.weight.has_value(), l.has_bias = of.bias.has_value();
  l.trains_weight = of.weight && of.trains_weight, l.trains_bias = of.bias && of.trains_bias;
  const auto& sizes = of.sizes;
  if (of.kind == "convolution") {
    l.kind = LayerKind::convolution;
    if (sizes.size() != 4 || *std::min_element(sizes.begin(), sizes.end()) < 0) wrong("kernel and padding");
    l.kh = sizes[0], l.kw = sizes[1], l.ph = sizes[2], l.pw = sizes[3];
    l.oh = height + 2 * l.ph - l.kh + 1, l.ow = width + 2 * l.pw - l.kw + 1;
    if (l.kh < 1 || l.kw < 1 || l.oh < 1 || l.ow < 1) wrong("the kernel is larger than the image");
    if (l.ph >= l.kh || l.pw >= l.kw) wrong("the kernel is no larger than its padding");
    if (!of.weight || of.weight->ndim() != 4 || of.weight->shape(1) != channels || of.weight->shape(2) != l.kh ||
        of.weight->shape(3) != l.kw)
      wrong("weights [outputs, inputs, kernel]");
    l.co = of.weight->shape(0);
  } else if (of.kind == "linear") {
    l.kind = LayerKind::linear;
    l.oh = l.ow = 1;
    if (!of.weight || of.weight->ndim() != 2 || of.weight->shape(1) != channels * height * width)
      wrong("weights [outputs, inputs]");
    l.co = of.weight->shape(0);
  } else if (of.kind == "max_pool") {
    l.kind = LayerKind::max_pool;
    if (sizes.size() != 1 || sizes[0] < 1 || sizes[0] > std::min(height, width)) wrong("side");
    l.kh = l.kw = sizes[0], l.oh = height / sizes[0], l.ow = width / sizes[0];
  } else if (of.kind == "relu") {
    l.kind = LayerKind::relu;
  } else if (of.kind == "batch_norm") {
    l.kind = LayerKind::batch_norm;
    l.epsilon = of.epsilon;
    if (height * width < 2) wrong("a batch of one would have no deviation");
    if (of.weight && of.weight->size() != channels) wrong("a weight for each channel");
  } else if (of.kind == "group_norm") {
    l.kind = LayerKind::group_norm;
    l.epsilon = of.epsilon;
    if (sizes.size() != 1 || sizes[0] < 1 || channels % sizes[0] != 0) wrong("groups of as many channels each");
    l.groups = sizes[0];
    if (channels / l.groups * height * width < 2) wrong("a group of one number would have no deviation");
    if (of.weight && of.weight->size() != channels) wrong("a weight for each channel");
  } else {
    wrong("none that is known");
  }
  if ((l.kind == LayerKind::max_pool || l.kind == LayerKind::relu) && (of.weight || of.bias))
    wrong("it has no weights");
  if (of.bias && of.bias->size() != l.co) wrong("a bias for each output");
  if (l.co < 1) wrong("no outputs");
  return l;
}

// Epochs of steps of `batch` examples, in the order [epochs, examples]. Weights are written when all are done.
inline void train_chain(const std::vector<LayerOf>& described, const Table<float>& x, const Table<int64_t>& labels,
                        const Table<int64_t>& order, int64_t batch, float rate, const std::string& isa) {
  const NamedStep& step = train_step_named(isa);
  if (x.ndim() != 4 || labels.ndim() != 1 || labels.size() != x.shape(0) || order.ndim() != 2 || batch < 1 ||
      described.empty())
    throw std::invalid_argument(
        "examples are [N, channels, height, width], labels [N], the order [epochs, N], of a batch or more");
  std::vector<Layer> layers;
  int64_t channels = x.shape(1), height = x.shape(2), width = x.shape(3);
  for (const LayerOf& of : described) {
    layers.push_back(shaped(of, channels, height, width, step.width));
    channels = layers.back().co, height = layers.back().oh, width = layers.back().ow;
  }
  if (std::none_of(layers.begin(), layers.end(), [](const Layer& l) { return l.trains_weight || l.trains_bias; }))
    return;
  const Chain chain{layers.data(), static_cast<int64_t>(layers.size()), channels, rate};
  if (height != 1 || width != 1) throw std::invalid_argument("the last layer gives no scores");
  const auto below = [](const Table<int64_t>& table, int64_t bound) {
    return std::all_of(table.data(), table.data() + table.size(), [&](int64_t i) { return i >= 0 && i < bound; });
  };
  if (!below(labels, channels) || !below(order, x.shape(0)))
    throw std::invalid_argument("a label or place out of range");

  Layer& first_layer = layers[0];
  batch = std::min(batch, std::max<int64_t>(order.shape(1), 1));
  first_layer.in_planes = first_layer.kind == LayerKind::convolution && !first_layer.by_tiles();
  Pieces memory;
  laid_out(layers, batch, memory);
  memory.allocate();
  float* images = laid_out(layers, batch, memory);
  std::vector<int64_t> chosen_labels(batch);
  const auto copy_weights = [&](auto copy) {
    for (size_t i = 0; i < layers.size(); ++i) {
      const Layer& l = layers[i];
      if (l.weight) {
        float* theirs = Table<float>(*described[i].weight).mutable_data();
        for_each_weight(l, [&](int64_t own, int64_t place) { copy(l.weight[own], theirs[place]); });
      }
      if (l.bias) {
        float* theirs = Table<float>(*described[i].bias).mutable_data();
        for (int64_t o = 0; o < l.co; ++o) copy(l.bias[o], theirs[o]);
      }
    }
  };
  copy_weights([](float& own, float& theirs) { own = theirs; });
  {
    const Unlocked unlocked;
    const int64_t epochs = order.shape(0), each = order.shape(1);
    const int64_t pixels = first_layer.ih * first_layer.iw, numbers = first_layer.ci * pixels;
    for (int64_t epoch = 0; epoch < epochs; ++epoch) {
      for (int64_t first = 0; first < each; first += batch) {
        const int64_t examples = std::min(batch, each - first);
        for (int64_t b = 0; b < examples; ++b) {
          const int64_t place = order.data()[epoch * each + first + b];
          const float* from = x.data() + place * numbers;
          float* to = images + b * first_layer.in_numbers();
          if (first_layer.in_planes) {
            memcpy(to, from, numbers * sizeof(float));
          } else {
            for (int64_t i = 0; i < numbers; ++i) to[i % pixels * first_layer.in_channels() + i / pixels] = from[i];
          }
          chosen_labels[b] = labels.data()[place];
        }
        step.step(chain, chosen_labels.data(), examples);
      }
    }
  }
  copy_weights([](float& own, float& theirs) { theirs = own; });
}

inline void bind_training(py::module_& m) {
  m.def("training_isas", [] {
    std::vector<std::string> names;
    for (const NamedStep& one : train_steps()) names.emplace_back(one.name);
    return names;
  });
  py::class_<LayerOf>(m, "Layer")
      .def(py::init([](std::string kind, std::vector<int64_t> sizes, std::optional<Table<float>> weight,
                       std::optional<Table<float>> bias, bool trains_weight, bool trains_bias, float epsilon) {
             return LayerOf{std::move(kind), std::move(sizes), std::move(weight), std::move(bias), trains_weight,
                            trains_bias,     epsilon};
           }),
           py::arg(), py::arg(), py::arg().noconvert(), py::arg().noconvert(), py::arg(), py::arg(), py::arg());
  m.def("train_chain", train_chain, py::arg(), py::arg().noconvert(), py::arg().noconvert(), py::arg().noconvert(),
        py::arg(), py::arg(), py::arg() = "");
}

}  // namespace ldpk
