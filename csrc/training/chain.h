// SPDX-License-Identifier: Apache-2.0
// Stochastic gradient descent of one client's network, a chain of few kinds of layers: what the instruction sets offer.
#pragma once

#include "../common.h"

namespace ldpk {

// Activations of one example are dense, channel by channel. They start at multiples of kAlign numbers, and what follows
// them up to there stays zero, so that registers may read on.
constexpr int64_t kAlign = 16;
constexpr LDPK_FN int64_t aligned(int64_t n) { return (n + kAlign - 1) / kAlign * kAlign; }

enum class LayerKind : int64_t { convolution, max_pool, relu, linear, batch_norm };

// A layer: its shapes, its weights, and the memory it works in. `in` and `out` may be the same, and their gradients.
// A linear layer has ci inputs and co outputs.
struct Layer {
  LayerKind kind;
  int64_t ci, ih, iw, co, oh, ow;
  int64_t kh, kw, ph, pw;  // kernel and padding; of a pool the kernel alone
  float* weight;           // null where there is none
  float* bias;             // likewise
  bool trains_weight, trains_bias;
  float epsilon;  // of a normalisation
  float* in;      // [examples], as all that follows but `packed` and `scratch`
  float* out;
  float* in_slope;  // gradients; null where nobody needs them
  float* out_slope;
  float* padded;     // inputs with their zeros around: `in` where there is no padding
  float* spread;     // gradients of outputs, as far apart as the inputs, with zeros before
  float* packed;     // weights, in the order of a pass
  float* scratch;    // one example's outputs
  int64_t* offsets;  // of a kernel's weights
  int32_t* chosen;   // which input of a pool is the largest

  LDPK_FN int64_t in_size() const { return ci * ih * iw; }
  LDPK_FN int64_t out_size() const { return co * oh * ow; }
  LDPK_FN int64_t in_pitch() const { return aligned(in_size()); }
  LDPK_FN int64_t out_pitch() const { return aligned(out_size()); }
  // A convolution is computed for all places of the padded input, row after row without a gap; those at the end of a
  // row, where the kernel would reach into the next, are left out afterwards.
  LDPK_FN int64_t wide() const { return iw + 2 * pw; }
  LDPK_FN int64_t plane() const { return (ih + 2 * ph) * wide(); }
  LDPK_FN int64_t padded_pitch() const { return ph == 0 && pw == 0 ? in_pitch() : aligned(ci * plane()); }
  LDPK_FN int64_t reach() const { return (oh - 1) * wide() + ow; }  // the last place that counts, and one
  LDPK_FN int64_t margin() const { return aligned((kh - 1) * wide() + kw - 1); }
  LDPK_FN bool halves() const { return kh == 2 && ih == 2 * oh && iw == 2 * ow; }  // a pool
  LDPK_FN int64_t spread_plane() const { return aligned(margin() + plane()) + kAlign; }
};

struct Chain {
  Layer* layers;
  int64_t count;
  int64_t classes;
  float rate;
};

// One step on `examples` of the chain's first `in`, whose labels are below `classes`.
using TrainStep = void (*)(const Chain&, const int64_t* labels, int64_t examples);

#if defined(__x86_64__)
void train_step_avx2(const Chain&, const int64_t* labels, int64_t examples);
void train_step_avx512(const Chain&, const int64_t* labels, int64_t examples);
#else
void train_step_plain(const Chain&, const int64_t* labels, int64_t examples);
#endif

}  // namespace ldpk
