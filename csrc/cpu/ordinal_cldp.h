// SPDX-License-Identifier: Apache-2.0
// Ordinal CLDP on the CPU: weights in place, or integers to integers. A tile of elements is decided by the leading
// digits of its draws, in plain loops over arrays. What is then left open goes on in a list, each element with draws of
// its own, when there are enough to fill registers. How the work is divided changes the speed and not the bits.
#pragma once

#include "../mechanisms/ordinal_cldp.h"
#include "scattered.h"
#include "skeleton.h"

namespace ldpk {

constexpr int kCldpTile = 512;
constexpr int kCldpWalks = 64;  // with fewer, the list waits for the next tile's

template <class Lanes, class Cipher>
struct OrdinalCldpRange {
  const Span& span;
  const OrdinalCldpLaw law;  // a copy: no store changes it, which the compiler does not see of another's
  const Key& key;

  // The tile's first element in the span, and how many it has.
  int64_t begin;
  int64_t n;

  // The tile's samples; integers' are where they belong at once. These are not among the arrays below: the compiler
  // asks whether samples overlap with what lies from the first of those to the last.
  alignas(64) int64_t own_samples[kCldpTile + 8];
  int64_t* samples = own_samples;

  // Lengths differ by a line of the cache: loads that lie whole pages behind a store would wait for it.
  alignas(64) uint32_t buffers[2][(kCldpTile * 8 + 2 * kStepBytes) / 4];
  alignas(64) int64_t values[kCldpTile + 8];
  alignas(64) uint64_t found[kCldpTile + 16];
  alignas(64) int64_t open[kCldpTile + 24];  // -1 where there is no sample yet, else 0

  // Elements that go on alone: where they are, their attempts and what these begin with.
  struct Walk {
    int64_t at, v;
    uint32_t attempt;
    uint64_t draw, low, carried;
  };
  Walk walks[kCldpTile + kCldpWalks];
  int64_t walking = 0;

  OrdinalCldpRange(const Span& s, const OrdinalCldpLaw& l, const Key& k) : span(s), law(l), key(k) {}

  void run(int64_t from, int64_t end) {
    for (begin = from; begin < end; begin += n) {
      const int64_t whole = kCldpTile - (span.first + begin) % kTileUnit;
      n = end - begin < whole ? end - begin : whole;
      load();
      if (span.dtype == kIntegers) samples = reinterpret_cast<int64_t*>(span.out) + begin;
      sample();
      if (span.dtype != kIntegers) store(samples, begin, n);
      while (walking >= kCldpWalks) advance();
    }
    while (walking) advance();
  }

 private:
  const uint64_t* draws(uint32_t stream, int buffer = 0) {
    return draws_of<Lanes, uint64_t>(Cipher{}, key, stream, span.first + begin, n, buffers[buffer]);
  }

  void look_up_all(const uint64_t* draws) {
    const auto* entries = reinterpret_cast<const uint16_t*>(law.entries);
    using u64 = typename Lanes::u64;
    if constexpr (requires { typename Lanes::Table; }) {
      const typename Lanes::Table upper(entries), middle(entries + kCldpColumns);
      for (int64_t e = 0; e < n; e += Lanes::blocks) {
        u64 d;
        memcpy(&d, draws + e, sizeof(u64));
        d = upper[d] | middle[d >> 16] << 16;
        memcpy(found + e, &d, sizeof(u64));
      }
    } else {
      for (int64_t e = 0; e < n; ++e) found[e] = look_up(entries, draws[e]);
    }
  }

  // An attempt of all that are open; the first is of all elements.
  template <bool is_first>
  void decide(const uint64_t* __restrict words, const uint64_t* __restrict low) {
    look_up_all(words);
    const PlainSample plain(law);
    const int64_t size = n;  // no store in the loop can change it, which the compiler does not see of a member
    int64_t* __restrict out = samples;
    for (int64_t e = 0; e < size; ++e) {
      int64_t sample;
      const int64_t rejected = plain(words[e], found[e], low[e], values[e], sample) ? 0 : -1;
      const int64_t chosen = is_first ? -1 : open[e] & ~rejected;
      out[e] = is_first ? sample : (sample & chosen) | (out[e] & ~chosen);
      open[e] = is_first ? rejected : open[e] & rejected;
    }
  }

  // The places of what is open, most often few.
  int64_t gather_open(int32_t* places) {
    int64_t count = 0;
    for (int64_t e = n; e % 8; ++e) open[e] = 0;
    for (int64_t group = 0; group < n; group += 8) {
      int64_t some = 0;
      for (int i = 0; i < 8; ++i) some |= open[group + i];
      if (!some) continue;
      for (int i = 0; i < 8; ++i) {
        places[count] = static_cast<int32_t>(group + i);
        count -= open[group + i];
      }
    }
    return count;
  }

  void sample() {
    const OrdinalCldp walk{law};
    bool dense = true;
    for (uint32_t attempt = 0; dense; ++attempt) {
      const uint64_t* words = draws(attempt * kCldpDraws);
      const uint64_t* low = law.wide ? draws(attempt * kCldpDraws + 1, 1) : words;
      attempt ? decide<false>(words, low) : decide<true>(words, low);
      int32_t places[kCldpTile + 8];
      const int64_t count = gather_open(places);
      const auto walk_on = [&](int32_t e) {
        open[e] = 0;
        walks[walking++] = {begin + e, values[e], attempt, words[e], low[e], 0};
      };
      int64_t over = 0;  // of these the attempt is over
      for (int64_t i = 0; i < count; ++i) {
        const int32_t e = places[i];
        uint64_t carried = 0;
        const auto none = [&](int) { return low[e]; };  // but the low digits
        if (walk.wanted(words[e])) {
          walk_on(e);
        } else if (law.saturate && walk.attempt(words[e], none, values[e], carried, samples[e])) {
          open[e] = 0;  // beyond the reach, and so at its end
        } else {
          places[over++] = e;
        }
      }
      dense = over > n / 64;  // then the whole tile's keystreams cost less than a block a draw
      for (int64_t i = 0; i < over && !dense; ++i) walk_on(places[i]);
    }
  }

  // An attempt of all that walk. Fetched are the draw that an element may want first, and what the next one begins
  // with.
  void advance() {
    constexpr int size = kCldpTile + kCldpWalks;
    const OrdinalCldp walk{law};
    uint64_t elements[size] = {}, streams[size] = {};  // scattered_draws reads some behind the last
    uint64_t more[size], words[size], low[size];
    for (int64_t i = 0; i < walking; ++i) elements[i] = span.first + walks[i].at;
    const auto fetch = [&](uint64_t* out, auto number) {
      for (int64_t i = 0; i < walking; ++i) streams[i] = number(walks[i]);
      scattered_draws<Lanes>(Cipher{}, key, elements, streams, walking, out);
    };
    fetch(more, [&](const Walk& w) { return w.attempt * kCldpDraws + walk.wanted(w.draw); });
    fetch(words, [](const Walk& w) { return (w.attempt + 1) * kCldpDraws; });
    if (law.wide) fetch(low, [](const Walk& w) { return (w.attempt + 1) * kCldpDraws + 1; });
    int64_t left = 0;
    for (int64_t i = 0; i < walking; ++i) {
      Walk w = walks[i];
      const int had = walk.wanted(w.draw);
      const auto draw = [&](int d) {
        return d == 1 ? w.low : d == had ? more[i] : single(w.attempt * kCldpDraws + d, elements[i]);
      };
      int64_t sample;
      if (walk.attempt(w.draw, draw, w.v, w.carried, sample)) {
        if (span.dtype == kIntegers) {
          reinterpret_cast<int64_t*>(span.out)[w.at] = sample;
        } else {
          store(&sample, w.at, 1);
        }
      } else {
        walks[left++] = {w.at, w.v, w.attempt + 1, words[i], law.wide ? low[i] : 0, w.carried};
      }
    }
    walking = left;
  }

  uint64_t single(uint32_t stream, uint64_t element) const {
    constexpr uint64_t per_block = kDrawsPerBlock<uint64_t, Cipher>;
    uint32_t words[Cipher::block_words];
    lone_block<Lanes>(Cipher{}, key, stream, element / per_block, words);
    const uint64_t at = element % per_block * 2;
    return words[at] | uint64_t{words[at + 1]} << 32;
  }

  void load() {
    if (span.dtype == kIntegers) {
      const int64_t* in = reinterpret_cast<const int64_t*>(span.data) + begin;
      for (int64_t e = 0; e < n; ++e) {
        const int64_t v = in[e];
        values[e] = v > law.bound ? law.bound : v < -law.bound ? -law.bound : v;
      }
      return;
    }
    with_dtype(span, [&](auto dtype) {
      const auto* in = reinterpret_cast<const BitsOf<dtype()>*>(span.data) + begin;
      law.bound <= kSmallInteger ? load_weights<dtype(), true>(in) : load_weights<dtype(), false>(in);
    });
  }

  template <Dtype dtype, bool small>
  void load_weights(const BitsOf<dtype>* __restrict in) {
    const WeightGrid<small> grid(law);
    const int64_t size = n;
    int64_t* __restrict v = values;
    if (!law.stochastic) {
      for (int64_t e = 0; e < size; ++e) v[e] = grid.nearest(Element<dtype>::number(in[e]));
      return;
    }
    const uint64_t* __restrict words = draws(kRoundingDraw);
    for (int64_t e = 0; e < size; ++e) {
      v[e] = grid.stochastic(Element<dtype>::number(in[e]), static_cast<uint32_t>(words[e] >> 32));
    }
  }

  void store(const int64_t* __restrict from, int64_t at, int64_t count) const {
    const double scale = law.scale;
    with_dtype(span, [&](auto dtype) {
      auto* __restrict out = reinterpret_cast<BitsOf<dtype()>*>(span.data) + at;
      for (int64_t e = 0; e < count; ++e) out[e] = rounded_bits<dtype()>(static_cast<double>(from[e]) / scale);
    });
  }
};

template <class Lanes, class Cipher>
void ordinal_cldp_range(const Span& span, const OrdinalCldpLaw& law, const Key& key, int64_t begin, int64_t end) {
  OrdinalCldpRange<Lanes, Cipher>(span, law, key).run(begin, end);
}

template <>
struct OnCpu<Resampled> {
  template <class Lanes, Output>
  static void run(const Span& span, const OrdinalCldpLaw& law, const Key& key, int64_t begin, int64_t end, Shared*) {
    with_cipher(key, [&](auto cipher) { ordinal_cldp_range<Lanes, decltype(cipher)>(span, law, key, begin, end); });
  }
};

}  // namespace ldpk
