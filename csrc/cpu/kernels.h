// SPDX-License-Identifier: Apache-2.0
// Everything that one instruction set offers: the table that cpu/isa_*.cpp fill.
#pragma once

#include "bit_counter.h"
#include "cells.h"
#include "clipped_noise.h"
#include "dispatch.h"
#include "lattice.h"
#include "masks.h"
#include "narrow_sums.h"
#include "one_bit.h"
#include "ordinal_cldp.h"
#include "privunitg.h"
#include "reflections.h"
#include "rotation.h"
#include "votes.h"

namespace ldpk {

template <class Lanes, class Cipher>
void keystream_of(Cipher cipher, const Key& key, uint32_t stream, uint64_t first_block, int64_t blocks, uint32_t* out) {
  constexpr int64_t size = Cipher::block_words * 4, piece = kStepBytes / size;
  alignas(64) uint32_t buffer[2 * kStepBytes / 4];
  for (int64_t b = 0; b < blocks; b += piece) {
    const int64_t n = blocks - b < piece ? blocks - b : piece;
    fill<Lanes>(cipher, key, stream, first_block + b, n, buffer);
    memcpy(out + b * Cipher::block_words, buffer, n * size);
  }
}

template <class Lanes>
void keystream(const Key& key, uint32_t stream, uint64_t first_block, int64_t blocks, uint32_t* out) {
  with_cipher(key, [&](auto cipher) { keystream_of<Lanes>(cipher, key, stream, first_block, blocks, out); });
}

template <class Lanes>
Summary summarize(const Span& span, int64_t begin, int64_t end) {
  Summary sums;
  with_dtype(span, [&](auto dtype) {
    const auto* data = reinterpret_cast<const BitsOf<dtype()>*>(span.data);
    sums = summarize_range<Lanes, dtype()>(data + begin, end - begin);
  });
  return sums;
}

// An action's kernel for these lanes. All actions have this one signature, so that a table can hold them by number: the
// law comes as an address, and its type is the action's.
template <class Lanes, class Action>
void run_erased(const Span& span, const void* law, const Key& key, int64_t begin, int64_t end, Shared* shared) {
  using Entry = typename Action::Entry;
  using Law = typename Entry::Law;
  OnCpu<typename Entry::Shape>::template run<Lanes, Action::output>(span, *static_cast<const Law*>(law), key, begin,
                                                                    end, shared);
}

template <class Lanes>
constexpr auto actions_for() {
  std::array<Kernels::RunAction, Registry::actions> actions{};
  size_t i = 0;
  Registry::each_action([&](auto action) { actions[i++] = run_erased<Lanes, decltype(action)>; });
  return actions;
}

template <class Lanes>
constexpr Kernels kernels_for(const char* name) {
  return {
      .name = name,
      .bits = 32 * Lanes::count,
      .actions = actions_for<Lanes>(),
      .keystream = keystream<Lanes>,
      .summarize = summarize<Lanes>,
      .count_bits = count_bits<Lanes>,
      .decode_f32 = decode_counts<Lanes, float>,
      .decode_f64 = decode_counts<Lanes, double>,
      .row_squares = row_squares<Lanes>,
      .row_scales = row_scales<Lanes>,
      .row_sums = row_sums<Lanes>,
      .narrow_rows = narrow_rows<Lanes>,
      .majority = majority<Lanes>,
      .noised = noised<Lanes>,
      .quantise = quantise<Lanes>,
      .noise_integers = noise_integers<Lanes>,
      .normal_product = normal_product<Lanes>,
      .moved_normals = moved_normals<Lanes>,
      .rotate_task = rotate_task<Lanes>,
      .add_masks = add_masks<Lanes>,
      .reflect = reflect<Lanes>,
  };
}

}  // namespace ldpk
