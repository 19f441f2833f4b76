// SPDX-License-Identifier: Apache-2.0
// The CPU skeleton: elements [begin, end) of one tensor through an action, a tile of keystream at a time. An action is
// a mechanism with one kind of output; csrc/cpu/one_bit.h has some to read. Each file cpu/isa_*.cpp compiles the
// skeleton once for its instruction set, and names no other file's lanes: the linker merges equal instantiations, and
// must not find one that was compiled for a better machine.
#pragma once

#include "../dtype.h"
#include "../mechanisms/registry.h"
#include "dispatch.h"
#include "keystream.h"

namespace ldpk {

// A group is at least 8 elements, one byte of one-bit reports.
constexpr int group_of(int elements) { return elements > 8 ? elements : 8; }

// Tiles end where blocks of every cipher do, so that only a span's first one computes a block for a part of it.
constexpr int kTile = 1024;
constexpr int kTileUnit = 32;
static_assert(kTile % kTileUnit == 0 && kTileUnit % (2 * ChaCha20::block_words) == 0);
constexpr int kTileWords = (kTile * 2 + 2 * kStepBytes) / 4;
static_assert(sizeof(Shared::buffers[0]) >= kTileWords * 4 && kSmallSpan <= kTile - kTileUnit);

template <class Lanes, class Cipher>
__attribute__((noinline)) typename Lanes::i32 rare_draws(const Key& key, uint32_t stream, uint64_t element) {
  alignas(64) uint32_t buffer[2 * kStepBytes / 4];
  return Lanes::load_draws(draws_of<Lanes, uint16_t>(Cipher{}, key, stream, element, Lanes::count, buffer));
}

// The 16-bit draws of a register of elements. Those of the first `prefilled` keystreams are at hand; a later one costs
// a block of cipher for itself, and is for branches that are rarely taken.
template <class Lanes, class Cipher, int prefilled>
struct Draws {
  const Key& key;
  uint64_t element;
  const uint16_t* streams[prefilled > 0 ? prefilled : 1];

  LDPK_FN Draws at(int i) const {
    Draws moved = *this;
    moved.element += i;
    for (int s = 0; s < prefilled; ++s) moved.streams[s] += i;
    return moved;
  }
  LDPK_FN typename Lanes::i32 operator[](int stream) const { return Lanes::load_draws(streams[stream]); }
  LDPK_FN typename Lanes::i32 rare(uint32_t stream) const { return rare_draws<Lanes, Cipher>(key, stream, element); }
};

// A shape of mechanisms (mechanisms/shapes.h) on the CPU: run<Lanes, output>(span, law, key, begin, end, shared).
template <class Shape>
struct OnCpu;

// An action has
//   Law          its parameters for one tensor, a struct of 8-byte fields
//   prefilled    how many keystreams it reads for every element
//   in_place     whether it writes where the weights were, or to span.out
//   Out<dtype>   what it writes, and per_out, how many elements share one
//   group<Lanes, dtype>(in, out, draws, law)   kGroup<Lanes> elements
// `begin` is a multiple of 8.
template <class Lanes, class Action, Dtype dtype, class Draws>
LDPK_FN void run_tile(const BitsOf<dtype>* in, typename Action::template Out<dtype>* out, int64_t tile, int64_t n,
                      const Draws& draws, const typename Action::Law& law) {
  using Bits = BitsOf<dtype>;
  using Out = typename Action::template Out<dtype>;
  constexpr int group = Action::template kGroup<Lanes>, per_out = Action::per_out;
  int64_t i = 0;
  for (; i + group <= n; i += group) {
    Action::template group<Lanes, dtype>(in + tile + i, out + (tile + i) / per_out, draws.at(i), law);
  }
  if (i < n) {  // the last group, in padded copies; a report's unused bits are zero
    const int64_t rest = n - i;
    Bits padded[group] = {};
    Out result[group / per_out];
    memcpy(padded, in + tile + i, rest * sizeof(Bits));
    Action::template group<Lanes, dtype>(padded, result, draws.at(i), law);
    for (int64_t e = rest; per_out == 8 && e < group; ++e) result[e / 8] &= ~(1u << (e % 8));
    memcpy(out + (tile + i) / per_out, result, (rest + per_out - 1) / per_out * sizeof(Out));
  }
}

// Makes the draws of elements from `element` on ready, for as many small spans as a tile has room for.
template <class Lanes, class Cipher, int prefilled>
LDPK_CALL void fill_shared(Shared& shared, const Key& key, uint64_t element, uint64_t needed) {
  const uint64_t most = element + (kTile - kTileUnit);
  shared.first = element;
  shared.end = shared.until > most ? most : shared.until > element + needed ? shared.until : element + needed;
  for (int s = 0; s < prefilled; ++s) {
    const int64_t n = shared.end - element;
    shared.draws[s] = draws_of<Lanes, uint16_t>(Cipher{}, key, s, element, n, shared.buffers[s]);
  }
}

template <class Lanes, class Action, class Cipher, Dtype dtype>
void run_range(const Span& span, const typename Action::Law& span_law, const Key& key, int64_t begin, int64_t end,
               Shared* shared) {
  using Bits = BitsOf<dtype>;
  using Out = typename Action::template Out<dtype>;
  constexpr int prefilled = Action::prefilled;
  const typename Action::Law law = span_law;  // a local copy: the compiler sees that no store changes it
  const Bits* in = reinterpret_cast<const Bits*>(span.data);
  Out* out = reinterpret_cast<Out*>(Action::in_place ? span.data : span.out);
  if (prefilled > 0 && shared) {
    const auto element = static_cast<uint64_t>(span.first + begin);
    if (element < shared->first || element + (end - begin) > shared->end)
      fill_shared<Lanes, Cipher, prefilled>(*shared, key, element, end - begin);
    Draws<Lanes, Cipher, prefilled> draws{key, element, {}};
    for (int s = 0; s < prefilled; ++s) draws.streams[s] = shared->draws[s] + (element - shared->first);
    return run_tile<Lanes, Action, dtype>(in, out, begin, end - begin, draws, law);
  }
  alignas(64) uint32_t buffers[prefilled > 0 ? prefilled : 1][kTileWords];
  for (int64_t tile = begin, n; tile < end; tile += n) {
    const int64_t whole = kTile - (span.first + tile) % kTileUnit;
    n = end - tile < whole ? end - tile : whole;
    Draws<Lanes, Cipher, prefilled> draws{key, static_cast<uint64_t>(span.first + tile), {}};
    for (int s = 0; s < prefilled; ++s)
      draws.streams[s] = draws_of<Lanes, uint16_t>(Cipher{}, key, s, draws.element, n, buffers[s]);
    run_tile<Lanes, Action, dtype>(in, out, tile, n, draws, law);
  }
}

template <class Lanes, class Action>
void run_action(const Span& span, const typename Action::Law& law, const Key& key, int64_t begin, int64_t end,
                Shared* shared) {
  with_dtype(span, [&](auto dtype) {
    with_cipher(key, [&](auto cipher) {
      run_range<Lanes, Action, decltype(cipher), dtype()>(span, law, key, begin, end, shared);
    });
  });
}

}  // namespace ldpk
