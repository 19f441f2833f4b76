// SPDX-License-Identifier: Apache-2.0
// The ordinal mechanisms of condensed local differential privacy: an integer v moves by a two-sided geometric step,
// drawn again where it leaves the box (exponential) or cut off far outside it (laplace).
// docs/mechanisms/ordinal_cldp.md.
//
// One draw of 64 bits is a sample but for one in 200: a sign, two values from alias tables of 64 columns, and low
// digits that are uniform and hardly ever given up. What a few leading digits leave open is decided by digits of other
// draws. The host's integers are the whole of privacy (ldpkernels/laws/ordinal_cldp_integers.py); nothing here rounds.
#pragma once

#include "../lanes.h"

namespace ldpk {

constexpr int kCldpColumns = 64;  // of an alias table
constexpr int kCldpLosses = 52;   // low digits at most
constexpr int kCldpDraws = 8;     // an attempt's

// A draw from its lowest bit on: 6 bits for a column of the upper table and 10 of the number that is compared with the
// column's threshold; the same for the middle table; 16 for low digits; the sign; 15 of the number that decides on
// giving up.
constexpr int kLeadingBits = 10, kLowAt = 32, kSignAt = 48, kKeepAt = 49, kKeepBits = 15;
constexpr uint64_t kColumnMask = kCldpColumns - 1, kLeadingMask = 0xffff & ~kColumnMask;

struct OrdinalCldpLaw {
  int64_t bound;       // inputs are kept to [-bound, bound]
  int64_t reach;       // outputs lie in [-reach, reach]
  int64_t saturate;    // 1: a step beyond the reach ends there. 0: it is drawn again
  int64_t stochastic;  // 1: a weight is rounded to one of its two neighbours at random. 0: to the nearest
  double scale;        // integers a unit of weight
  int64_t wide;        // 1: the low digits are those of draw 1. 0: there are at most 16
  int64_t low;         // low digits
  int64_t middle;      // digits of the middle table
  uint64_t tail;       // the upper table's last value: `unit` more, and draw again
  uint64_t unit;       // magnitudes that the other values reach, kept to 64 bits
  uint64_t keep;       // a sample whose 15 bits are at least this is kept
  uint64_t entries[2 * kCldpColumns / 4];     // four columns each: a threshold's first ten digits, and the other value
  uint64_t thresholds[2 * kCldpColumns * 2];  // out of 2^128, the high half first
  uint64_t losses[kCldpLosses * 2];           // likewise: giving up for a low digit that is there
};

// Columns that a draw chooses in both tables, with the places in the word that the draw has for them.
LDPK_FN uint64_t look_up(const uint16_t* entries, uint64_t draw) {
  return entries[draw & kColumnMask] | uint64_t{entries[kCldpColumns + (draw >> 16 & kColumnMask)]} << 16;
}

// The samples that are plain: every comparison decided by its leading digits, no tail, inside the reach.
struct PlainSample {
  uint64_t reach, tail, keep, digits;
  int low_at, middle_at, upper_at;

  explicit LDPK_FN PlainSample(const OrdinalCldpLaw& law)
      : reach(static_cast<uint64_t>(law.reach)),
        tail(law.tail),
        keep(law.keep),
        digits((uint64_t{1} << law.low) - 1),
        low_at(law.wide ? 0 : kLowAt),
        middle_at(static_cast<int>(law.low)),
        upper_at(static_cast<int>(law.low + law.middle)) {}

  // `found` is look_up(draw); `low` the draw of the low digits.
  LDPK_FN bool operator()(uint64_t draw, uint64_t found, uint64_t low, int64_t v, int64_t& out) const {
    const uint64_t upper = chosen(draw, found), middle = chosen(draw >> 16, found >> 16);
    const uint64_t magnitude = (upper << upper_at) + (middle << middle_at) + (low >> low_at & digits);
    const uint64_t at = static_cast<uint64_t>(v);
    const uint64_t down = 0 - (draw >> kSignAt & 1);
    const uint64_t room = reach + ((at ^ ~down) - ~down);          // at + reach, or reach - at
    out = static_cast<int64_t>(at + ((magnitude ^ down) - down));  // at - magnitude, or at + magnitude
    return is_closed(draw, found) & (magnitude <= room) & ((magnitude | ~down) != 0);
  }

  // Whether the draw alone decides its attempt: it is the sample, or another attempt begins from nothing.
  LDPK_FN bool is_closed(uint64_t draw, uint64_t found) const {
    const uint64_t apart = draw ^ found;
    const bool ties = ((apart & kLeadingMask) == 0) | ((apart >> 16 & kLeadingMask) == 0);
    return !ties & (draw >> kKeepAt >= keep) & (chosen(draw, found) != tail);
  }

 private:
  static LDPK_FN uint64_t chosen(uint64_t draw, uint64_t found) {
    return ((draw & kLeadingMask) < (found & kLeadingMask) ? draw : found) & kColumnMask;
  }
};

// A word of a sample on its way, and the others that its attempt may want: attempt a has the draws from 8 a on. Numbers
// of 128 binary digits are compared with thresholds: their first digits are in the first draw, the others in two draws
// of their own, 2 and 3 for the upper table, 4 and 5 for the middle one, 6 and 7 for giving up.
struct OrdinalCldp {
  const OrdinalCldpLaw& law;

  // Which draw an attempt may want first beside its own; 0 where it is over without any, and nothing is carried.
  LDPK_FN int wanted(uint64_t draw) const {
    const uint64_t found = entry(0, draw);
    const uint64_t upper = ((draw & kLeadingMask) < (found & kLeadingMask) ? draw : found) & kColumnMask;
    if (is_tied(0, draw) || upper == law.tail) return 2;
    if (is_tied(1, draw >> 16)) return 4;
    return draw >> kKeepAt < law.keep ? 6 : 0;
  }

  // True when `out` is the sample; else the next attempt goes on from `carried`. more(i) is the attempt's draw i.
  template <class More>
  LDPK_FN bool attempt(uint64_t draw, More more, int64_t v, uint64_t& carried, int64_t& out) const {
    const uint64_t upper = value(0, draw, more, 2);
    if (upper == law.tail) {
      carried = saturating(carried, law.unit);
      return false;
    }
    const uint64_t middle = value(1, draw >> 16, more, 4);
    const uint64_t low = (law.wide ? more(1) : draw >> kLowAt) & ((uint64_t{1} << law.low) - 1);
    const uint64_t step = (upper << (law.low + law.middle)) + (middle << law.low) + low;
    uint64_t magnitude = saturating(carried, step);
    carried = 0;
    if (draw >> kKeepAt < law.keep) {
      uint64_t loss[2];
      loss_of(low, loss);
      if (is_below(loss, draw >> kKeepAt, kKeepBits, more, 6)) return false;
    }
    const bool down = (draw >> kSignAt & 1) != 0;
    const uint64_t at = static_cast<uint64_t>(v), reach = static_cast<uint64_t>(law.reach);
    const uint64_t room = down ? at + reach : reach - at;
    if (law.saturate && magnitude > room) magnitude = room;
    if (magnitude > room || (down && magnitude == 0)) return false;  // zero has one sign
    out = static_cast<int64_t>(down ? at - magnitude : at + magnitude);
    return true;
  }

 private:
  LDPK_FN uint64_t entry(int table, uint64_t field) const {
    const uint64_t column = table * kCldpColumns + (field & kColumnMask);
    return law.entries[column / 4] >> (column % 4 * 16);
  }
  LDPK_FN bool is_tied(int table, uint64_t field) const { return ((entry(table, field) ^ field) & kLeadingMask) == 0; }

  template <class More>
  LDPK_FN uint64_t value(int table, uint64_t field, More more, int further) const {
    const uint64_t column = field & kColumnMask;
    const uint64_t* threshold = law.thresholds + 2 * (table * kCldpColumns + column);
    const bool own = is_below(threshold, (field & 0xffff) >> (16 - kLeadingBits), kLeadingBits, more, further);
    return own ? column : entry(table, field) & kColumnMask;
  }

  // Whether a number of 128 digits is below a threshold; `bits` of them are `leading`.
  template <class More>
  static LDPK_FN bool is_below(const uint64_t* threshold, uint64_t leading, int bits, More more, int further) {
    const uint64_t head = threshold[0] >> (64 - bits);
    if (leading != head) return leading < head;
    const uint64_t next = threshold[0] << bits | threshold[1] >> (64 - bits), drawn = more(further);
    if (drawn != next) return drawn < next;
    return more(further + 1) < threshold[1] << bits;
  }

  // The probability of giving up low digits, out of 2^128: 1 - prod (1 - loss) over those that are there.
  LDPK_FN void loss_of(uint64_t low, uint64_t (&sum)[2]) const {
    sum[0] = sum[1] = 0;
    for (; low; low &= low - 1) {
#if defined(__CUDA_ARCH__)
      const int j = __ffsll(static_cast<long long>(low)) - 1;
#else
      const int j = __builtin_ctzll(low);
#endif
      const uint64_t high = law.losses[2 * j], rest = law.losses[2 * j + 1];
      uint64_t both[2] = {high_word(sum[0], high), sum[0] * high};
      add(both, 0, high_word(sum[0], rest));
      add(both, 0, high_word(sum[1], high));
      add(sum, high, rest);
      sum[0] -= both[0] + (sum[1] < both[1]);
      sum[1] -= both[1];
    }
  }
  static LDPK_FN void add(uint64_t (&sum)[2], uint64_t high, uint64_t low) {
    sum[1] += low;
    sum[0] += high + (sum[1] < low);
  }
  static LDPK_FN uint64_t high_word(uint64_t a, uint64_t b) {
#if defined(__CUDA_ARCH__)
    return __umul64hi(a, b);
#else
    return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
#endif
  }
  static LDPK_FN uint64_t saturating(uint64_t a, uint64_t b) { return a + b < a ? ~uint64_t{0} : a + b; }
};

// Weights to the integers of ordinal CLDP and back.

// The draw that decides stochastic rounding; no attempt comes so far.
constexpr uint32_t kRoundingDraw = 0xffffffffu;

// Up to here an integer can be read off the low bits of a sum with 1.5 * 2^52, which every instruction set does in a
// register.
constexpr int64_t kSmallInteger = int64_t{1} << 51;

// One multiplication by the scale, kept to [-bound, bound]; a NaN is taken for 0.
template <bool small>
struct WeightGrid {
  double scale, top;  // the largest double that is at most the bound
  int64_t bound;

  explicit LDPK_FN WeightGrid(const OrdinalCldpLaw& law) : scale(law.scale), bound(law.bound) {
    const double d = static_cast<double>(bound);
    top = static_cast<int64_t>(d) <= bound ? d : bit_cast<double>(bit_cast<uint64_t>(d) - 1);
  }

  // The nearest integer, ties to even.
  LDPK_FN int64_t nearest(double x) const {
    const double z = inside(x);
    return ends(z, round(z));
  }

  // One of the two neighbours, the upper one with the probability of the fraction in units of 2^-32.
  LDPK_FN int64_t stochastic(double x, uint32_t draw) const {
    const double z = inside(x);
#if defined(__CUDA_ARCH__)
    const double floor = ::floor(z);
#else
    const double floor = __builtin_floor(z);
#endif
    const int64_t share = WeightGrid<true>::round((z - floor) * 0x1p32);
    return ends(z, round(floor) + (static_cast<int64_t>(draw) < share));
  }

  static LDPK_FN int64_t round(double z) {
    constexpr double shift = 0x1.8p52;
    if constexpr (small) return bit_cast<int64_t>(z + shift) - bit_cast<int64_t>(shift);
#if defined(__CUDA_ARCH__)
    return __double2ll_rn(z);
#else
    return static_cast<int64_t>(__builtin_llrint(z));
#endif
  }

 private:
  LDPK_FN double inside(double x) const {
    const double scaled = x * scale, z = scaled != scaled ? 0.0 : scaled;
    const double below = z > top ? top : z;
    return below < -top ? -top : below;
  }
  LDPK_FN int64_t ends(double z, int64_t k) const {
    const int64_t below = z >= top ? bound : k;
    return z <= -top ? -bound : below;
  }
};

}  // namespace ldpk
