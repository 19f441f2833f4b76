// SPDX-License-Identifier: Apache-2.0
// Ordinal CLDP on the CPU: weights in place, or integers to integers. A tile of elements is compared with its
// thresholds digit by digit, a keystream at a time, in plain loops over arrays. What is then left open goes on in a
// list, each element with draws of its own. How far the first part goes changes the speed and not the bits.
#pragma once

#include "../mechanisms/cldp_weights.h"
#include "../mechanisms/ordinal_cldp.h"
#include "scattered.h"
#include "skeleton.h"

namespace ldpk {

constexpr int kCldpTile = 512;

template <class Lanes, class Cipher, class Word>
struct OrdinalCldpTile {
  using Walk = OrdinalCldp<Word>;

  const OrdinalCldpLaw& law;
  const Key& key;
  uint64_t first;  // the first element's number
  int64_t n;
  int64_t values[kCldpTile];
  int64_t samples[kCldpTile];

  alignas(64) uint32_t buffer[(kCldpTile * sizeof(Word) + 2 * kStepBytes) / 4];
  alignas(64) Word open[kCldpTile];
  alignas(64) Word less[kCldpTile];
  alignas(64) int64_t wanted[kCldpTile];  // -1 where this attempt decides, else 0

  Walk walks[kCldpTile];
  int32_t places[kCldpTile];
  int32_t rejected[kCldpTile];

  OrdinalCldpTile(const OrdinalCldpLaw& l, const Key& k, uint64_t f, int64_t count)
      : law(l), key(k), first(f), n(count) {}

  const Word* draws(uint32_t stream) { return draws_of<Lanes, Word>(Cipher{}, key, stream, first, n, buffer); }

  void compare(uint32_t attempt, int count) {
    const Word sign = static_cast<Word>(law.sign), lanes = static_cast<Word>(law.lanes);
    const int64_t size = n;  // no store in the loops can change it, which the compiler does not see of a member
    Word* __restrict o = open;
    Word* __restrict l = less;
    for (int digit = 0; digit < count; ++digit) {
      const Word* __restrict words = draws((attempt << 16) + digit);
      const Word threshold = static_cast<Word>(law.thresholds[digit]);
      if (digit == 0) {
        for (int64_t e = 0; e < size; ++e) o[e] = lanes, l[e] = words[e] & sign;
      }
      for (int64_t e = 0; e < size; ++e) compare_digit(o[e], l[e], words[e], threshold);
    }
  }

  void accept() {
    const PlainSample<Word> plain(law);
    for (int64_t e = 0; e < n; ++e) {
      int64_t sample;
      const int64_t chosen = plain(open[e], less[e], values[e], sample) ? wanted[e] : 0;
      samples[e] = (sample & chosen) | (samples[e] & ~chosen);
      wanted[e] &= ~chosen;
    }
  }

  // The others, one by one: some have a sample yet, some go on where they are, some must try again.
  void sort(uint32_t attempt, int count, int64_t& walking, int64_t& again) {
    int64_t left = 0;
    for (int64_t e = 0; e < n; ++e) {
      rejected[left] = static_cast<int32_t>(e);
      left -= wanted[e];
    }
    again = 0;
    for (int64_t i = 0; i < left; ++i) {
      const int32_t e = rejected[i];
      Walk walk{open[e], less[e], (attempt << 16) + count, 0};
      wanted[e] = 0;
      if (walk.open == 0 && walk.conclude(values[e], law, samples[e])) continue;
      if (walk.draw >> 16 != attempt) {
        rejected[again++] = e;
      } else {
        places[walking] = e;
        walks[walking++] = walk;
      }
    }
  }

  void finish(int64_t walking) {
    uint64_t elements[kCldpTile], streams[kCldpTile];
    Word words[kCldpTile];
    const auto place = [&](int64_t i, int32_t e, const Walk& walk) {
      places[i] = e;
      walks[i] = walk;
      elements[i] = first + e;
      streams[i] = walk.draw;
    };
    for (int64_t i = 0; i < walking; ++i) place(i, places[i], walks[i]);
    while (walking) {
      for (int64_t i = walking; i % kScatterStep; ++i) elements[i] = streams[i] = 0;
      scattered_draws<Lanes, Word>(Cipher{}, key, elements, streams, walking, words);
      int64_t left = 0;
      for (int64_t i = 0; i < walking; ++i) {
        const int32_t e = places[i];
        Walk walk = walks[i];
        const bool done = walk.step(words[i], values[e], law, samples[e]);
        place(left, e, walk);
        left += !done;
      }
      walking = left;
    }
  }

  void sample() {
    // What stays open takes a block for a draw, and ChaCha20's are dear.
    const int count = draws_for(law, Cipher::block_words > 4 ? 4 : 3);
    int64_t walking = 0, again = n;
    for (int64_t e = 0; e < n; ++e) wanted[e] = -1;
    for (uint32_t attempt = 0;; ++attempt) {
      compare(attempt, count);
      accept();
      sort(attempt, count, walking, again);
      const bool dense = again > n / 8;  // then the whole tile's keystreams cost less than a block a draw
      for (int64_t i = 0; i < again; ++i) {
        if (dense) {
          wanted[rejected[i]] = -1;
        } else {
          places[walking] = rejected[i];
          walks[walking++] = Walk::attempt(attempt + 1, law);
        }
      }
      if (!dense) break;
    }
    finish(walking);
  }

  void load_integers(const int64_t* in) {
    for (int64_t e = 0; e < n; ++e) {
      const int64_t v = in[e];
      values[e] = v > law.bound ? law.bound : v < -law.bound ? -law.bound : v;
    }
  }

  template <Dtype dtype>
  void load_weights(const BitsOf<dtype>* in) {
    law.bound <= kSmallInteger ? load<dtype, true>(in) : load<dtype, false>(in);
  }

  template <Dtype dtype>
  void store_weights(BitsOf<dtype>* __restrict out) const {
    const double scale = law.scale;
    const int64_t size = n;
    for (int64_t e = 0; e < size; ++e) out[e] = rounded_bits<dtype>(static_cast<double>(samples[e]) / scale);
  }

 private:
  template <Dtype dtype, bool small>
  void load(const BitsOf<dtype>* __restrict in) {
    const WeightGrid<small> grid(law);
    const int64_t size = n;
    int64_t* __restrict v = values;
    if (!law.stochastic) {
      for (int64_t e = 0; e < size; ++e) v[e] = grid.nearest(Element<dtype>::number(in[e]));
      return;
    }
    const Word* __restrict words = draws(kRoundingDraw);
    for (int64_t e = 0; e < size; ++e) {
      const uint32_t high = static_cast<uint32_t>(words[e] >> (8 * sizeof(Word) - 32));
      v[e] = grid.stochastic(Element<dtype>::number(in[e]), high);
    }
  }
};

template <class Lanes, class Cipher, class Word>
void ordinal_cldp_range(const Span& span, const OrdinalCldpLaw& span_law, const Key& key, int64_t begin, int64_t end) {
  const OrdinalCldpLaw law = span_law;
  for (int64_t at = begin, n; at < end; at += n) {
    const int64_t whole = kCldpTile - (span.first + at) % kTileUnit;
    n = end - at < whole ? end - at : whole;
    OrdinalCldpTile<Lanes, Cipher, Word> tile(law, key, static_cast<uint64_t>(span.first + at), n);
    if (span.dtype == kIntegers) {
      tile.load_integers(reinterpret_cast<const int64_t*>(span.data) + at);
      tile.sample();
      memcpy(reinterpret_cast<int64_t*>(span.out) + at, tile.samples, n * sizeof(int64_t));
      continue;
    }
    with_dtype(span, [&](auto dtype) {
      auto* data = reinterpret_cast<BitsOf<dtype()>*>(span.data) + at;
      tile.template load_weights<dtype()>(data);
      tile.sample();
      tile.template store_weights<dtype()>(data);
    });
  }
}

template <>
struct OnCpu<Resampled> {
  template <class Lanes, Output>
  static void run(const Span& span, const OrdinalCldpLaw& law, const Key& key, int64_t begin, int64_t end, Shared*) {
    const bool chacha = key.size == ChaCha20::key_words;
    if (law.wide && chacha) return ordinal_cldp_range<Lanes, ChaCha20, uint64_t>(span, law, key, begin, end);
    if (law.wide) return ordinal_cldp_range<Lanes, Philox, uint64_t>(span, law, key, begin, end);
    if (chacha) return ordinal_cldp_range<Lanes, ChaCha20, uint32_t>(span, law, key, begin, end);
    ordinal_cldp_range<Lanes, Philox, uint32_t>(span, law, key, begin, end);
  }
};

}  // namespace ldpk
