// SPDX-License-Identifier: Apache-2.0
// The ordinal mechanisms of condensed local differential privacy: an integer v moves by a two-sided geometric step,
// drawn again where it leaves the box (exponential) or cut off far outside it (laplace).
// docs/mechanisms/ordinal_cldp.md.
//
// A step is a sign, binary digits that are independent coins, and a quotient: how often a last coin comes up in a row.
// Each coin is a lane: one bit of a word. A lane holds a uniform number of 128 binary digits, digit by digit, one draw
// for all lanes at once, and comes up if that number is below the lane's threshold. The host's thresholds are the whole
// of privacy (ldpkernels/ordinal_cldp.py); nothing here rounds.
#pragma once

#include "../lanes.h"

namespace ldpk {

constexpr uint32_t kThresholdDigits = 128;

struct OrdinalCldpLaw {
  int64_t bound;       // inputs are kept to [-bound, bound]
  int64_t reach;       // outputs lie in [-reach, reach]
  int64_t saturate;    // 1: a step beyond the reach ends there. 0: it is drawn again
  int64_t wide;        // 1: draws have 64 bits. 0: 32, which are enough for all lanes
  int64_t stochastic;  // 1: a weight is rounded to one of its two neighbours at random. 0: to the nearest
  double scale;        // integers a unit of weight
  uint64_t lanes;      // the lanes of the digits and of the quotient
  uint64_t sign;       // the sign's bit, right above the digits: 2^digits, which a quotient is worth
  uint64_t quotient;   // the quotient's bit, or 0
  uint64_t thresholds[kThresholdDigits];  // bit l of number i: binary digit i of lane l's threshold

  LDPK_FIELDS(OrdinalCldpLaw, bound, reach, saturate, wide, stochastic, scale, lanes, sign, quotient, thresholds)
};

// The next binary digit of all lanes that are still equal to their thresholds.
template <class Word>
LDPK_FN void compare_digit(Word& open, Word& less, Word draw, Word threshold) {
  const Word decided = open & (draw ^ threshold);
  less |= decided & threshold;
  open &= ~decided;
}

// How many draws leave one element in 2^rare, or fewer, with an undecided lane: every draw halves the lanes that are.
LDPK_FN int draws_for(const OrdinalCldpLaw& law, int rare) {
#if defined(__CUDA_ARCH__)
  return rare + 32 - __clz(__popcll(law.lanes));
#else
  const int lanes = __builtin_popcountll(law.lanes);
  return rare + (lanes ? 32 - __builtin_clz(static_cast<unsigned>(lanes)) : 0);
#endif
}

// The samples that are plain: every lane decided in the first comparison, no quotient, inside the reach.
template <class Word>
struct PlainSample {
  uint64_t reach;
  Word sign, quotient;

  explicit LDPK_FN PlainSample(const OrdinalCldpLaw& law)
      : reach(static_cast<uint64_t>(law.reach)),
        sign(static_cast<Word>(law.sign)),
        quotient(static_cast<Word>(law.quotient)) {}

  LDPK_FN bool operator()(Word open, Word less, int64_t v, int64_t& out) const {
    const uint64_t at = static_cast<uint64_t>(v), magnitude = less & static_cast<Word>(sign - 1);
    const uint64_t down = less & sign ? ~uint64_t{0} : 0, up = ~down;
    const uint64_t room = reach + ((at ^ up) - up);                // at + reach, or reach - at
    out = static_cast<int64_t>(at + ((magnitude ^ down) - down));  // at - magnitude, or at + magnitude
    return ((open | (less & quotient)) == 0) & (magnitude <= room) & ((magnitude | up) != 0);
  }
};

// One element on its way to a sample. Attempt a has the draws from a * 2^16 on, its comparison c those from
// a * 2^16 + c * 2^7 on: the first is of all lanes, each further one of the quotient's.
template <class Word>
struct OrdinalCldp {
  Word open;         // lanes that are not decided
  Word less;         // lanes that came up, and the sign
  uint32_t draw;     // which one is next
  uint64_t carried;  // the quotients so far, in units of output

  static LDPK_FN OrdinalCldp attempt(uint32_t number, const OrdinalCldpLaw& law) {
    return {static_cast<Word>(law.lanes), 0, number << 16, 0};
  }

  // True when `out` is the sample.
  LDPK_FN bool step(Word word, int64_t v, const OrdinalCldpLaw& law, int64_t& out) {
    if ((draw & 0xffffu) == 0) less = word & static_cast<Word>(law.sign);
    const uint32_t digit = draw % kThresholdDigits;
    compare_digit(open, less, word, static_cast<Word>(law.thresholds[digit]));
    ++draw;
    if (open != 0 && digit + 1 < kThresholdDigits) return false;
    return conclude(v, law, out);
  }

  // All lanes are decided; one that is equal to its threshold to the last digit has not come up.
  LDPK_FN bool conclude(int64_t v, const OrdinalCldpLaw& law, int64_t& out) {
    const bool down = (less & law.sign) != 0;
    const uint64_t at = static_cast<uint64_t>(v), reach = static_cast<uint64_t>(law.reach);
    const uint64_t room = down ? at + reach : reach - at;
    const bool again = (less & law.quotient) != 0;
    if (again) carried += law.sign;
    uint64_t magnitude = carried + (less & (law.sign - 1));
    if (again && magnitude <= room) {
      open = static_cast<Word>(law.quotient);
      less &= ~open;
      draw = ((draw - 1) | (kThresholdDigits - 1)) + 1;
      return false;
    }
    if (law.saturate && magnitude > room) magnitude = room;
    if (magnitude > room || (down && magnitude == 0)) {  // zero has one sign
      *this = attempt(((draw - 1) >> 16) + 1, law);
      return false;
    }
    out = static_cast<int64_t>(down ? at - magnitude : at + magnitude);
    return true;
  }
};

}  // namespace ldpk
