// SPDX-License-Identifier: Apache-2.0
// Stochastic gradient descent of one client's network, a chain of few kinds of layers: what the instruction sets offer.
#pragma once

#include "../common.h"

namespace ldpk {

// Pieces of memory start at multiples of kAlign numbers.
constexpr int64_t kAlign = 16;
constexpr LDPK_FN int64_t rounded(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// Winograd's convolutions take tiles of images to so many points, and so many tiles at once.
constexpr int64_t kPoints = 36, kTiles = 28;

enum class LayerKind : int64_t { convolution, max_pool, relu, linear, batch_norm, group_norm };

// A layer: its shapes, its weights, and the memory it works in. `in` and `out` may be the same, and their gradients.
//
// Activations of one example are [rows][columns][channels], channels in whole registers, of which the last is filled up
// with zeros: every pass but a convolution goes through them in registers. A convolution multiplies single inputs with
// registers of outputs; so that neighbouring inputs lie at distances which the compiler knows, it has them as padded
// planes, [channels][rows][columns], and the gradients of its outputs likewise.
struct Layer {
  LayerKind kind;
  int64_t width;  // numbers in a register
  int64_t ci, ih, iw, co, oh, ow;
  int64_t kh, kw, ph, pw;  // kernel and padding; of a pool the kernel alone
  float* weight;  // null where there is none. Convolution: [ci][kh][kw][co in registers]; linear: [co][in_pitch]
  float* bias;    // likewise
  bool has_weight, has_bias, trains_weight, trains_bias;
  float epsilon;   // of a normalisation
  int64_t groups;  // likewise
  bool rectifies;  // a ReLU follows that a convolution or a normalisation takes along
  bool in_planes;  // the inputs are a client's images, which are planes
  float* in;       // [examples], as all that follows to `chosen`
  float* out;
  float* in_slope;  // gradients; null where nobody needs them
  float* out_slope;
  int64_t in_slope_apart, out_slope_apart;  // from one example to the next: 0 where all use the same memory
  float* padded;                            // inputs of a convolution
  int32_t* chosen;                          // which input of a pool is the largest
  float* weight_gradient;                   // as `weight`, of layers whose gradients are sums over examples
  float* bias_gradient;
  // Of a convolution:
  float* spread;    // one example's gradients of outputs
  float* mirrored;  // weights of the way back: [co][kh][kw][ci in registers], the kernel turned round
  float *points, *mirrored_points, *gradient_points;  // the same at points, where it goes by tiles
  float* tiles;                                       // memory of all convolutions that do
  float* factors;  // of a linear layer: gradients of outputs, turned; of a normalisation: numbers for each channel

  LDPK_FN bool by_example() const {
    return kind != LayerKind::linear && kind != LayerKind::batch_norm && !(by_tiles() && tiles_of_example() < kTiles);
  }
  // Whether a convolution is Winograd's: with fewer channels, or larger a part of tiles outside, it would be no faster.
  LDPK_FN bool by_tiles() const {
    return kind == LayerKind::convolution && kh == kw && (kh == 3 || kh == 5) && ci >= 8 && co >= 8 &&
           2 * kPoints * tiles_of_example() <= kh * kw * oh * ow;
  }
  LDPK_FN int64_t tile_side() const { return 7 - kh; }  // of its outputs
  LDPK_FN int64_t tiles_of_example() const {
    return rounded(oh, tile_side()) / tile_side() * (rounded(ow, tile_side()) / tile_side());
  }
  LDPK_FN int64_t tile_numbers() const { return kPoints * (kTiles + 1) * (in_channels() + out_channels()); }
  LDPK_FN int64_t in_channels() const { return rounded(ci, width); }
  LDPK_FN int64_t out_channels() const { return rounded(co, width); }
  LDPK_FN int64_t in_size() const { return ih * iw * in_channels(); }
  LDPK_FN int64_t out_size() const { return oh * ow * out_channels(); }
  LDPK_FN int64_t in_numbers() const { return in_planes ? ci * ih * iw : in_size(); }
  LDPK_FN int64_t padded_row() const { return iw + 2 * pw; }
  LDPK_FN int64_t padded_plane() const { return (ih + 2 * ph) * padded_row(); }
  LDPK_FN int64_t spread_row() const { return iw + kw - 1; }
  LDPK_FN int64_t spread_plane() const { return (ih + kh - 1) * spread_row(); }
  LDPK_FN int64_t weights() const {
    return kind == LayerKind::convolution ? ci * kh * kw * out_channels()
           : kind == LayerKind::linear    ? co * in_size()
                                          : in_channels();
  }
  LDPK_FN bool sums_gradients() const { return kind == LayerKind::convolution || kind == LayerKind::group_norm; }
  // From one point to the next of a kernel [inputs][outputs]: no power of two, whose multiples share a few places of
  // the first cache.
  static constexpr LDPK_FN int64_t points_apart(int64_t inputs, int64_t outputs) { return inputs * outputs + kAlign; }
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
