// SPDX-License-Identifier: Apache-2.0
// The shapes of mechanisms that change each weight on its own. A mechanism of a known shape is a few functions over
// lanes; the CPU's and the GPU's skeletons, which know the shape, do the rest.
#pragma once

#include "ordinal_cldp.h"

namespace ldpk {

// One bit of two, by a threshold: a weight becomes an integer k in [-2^31, 2^31), a draw u is uniform on the 2^32
// integers from -2^31, and the report is "upper" if u < k. A Mechanism<Lanes> has
//   Law                 with fields `lower` and `upper`, the two outputs as bits of the tensor's dtype
//   threshold(x, law)   k; the law is a Law, or has its fields in the format of x
// and may have
//   near(x, law)        an integer with the upper half of k, for a law that `has_near`, with fewer instructions
// Outputs: values, bits, thresholds.
template <template <class Lanes> class Mechanism>
struct OneBit {
  using Law = typename Mechanism<ScalarLanes>::Law;
};

// One of at most 256 cells of a circle, by one draw of 32 bits. A Mechanism<Lanes> has
//   Law
//   circle(law)         what the cells are, with `lowest`, `step`, `origin` as in PiecewiseLaw
//   turn(x, circle)     an integer k
//   cell(k, draw, law)  the cell's number
// Outputs: values, cells, turns.
template <template <class Lanes> class Mechanism>
struct Cells {
  using Law = typename Mechanism<ScalarLanes>::Law;
};

// Ordinal CLDP's, which draws again and takes integers too. Outputs: values.
struct Resampled {
  using Law = OrdinalCldpLaw;
};

// u < k on 32 bits from 16-bit halves. The high half decides alone but once in 2^16, so the low half is drawn only on a
// tie: `low_draws` is a function that returns it.
template <class Lanes, class LowDraws>
LDPK_FN typename Lanes::Mask is_upper(typename Lanes::i32 k, typename Lanes::i32 high_draw, LowDraws low_draws) {
  using Mask = typename Lanes::Mask;
  const typename Lanes::i32 high = k >> 16;
  const Mask tie = Lanes::equal(high_draw, high);
  Mask upper = Lanes::less(high_draw, high);
  if (Lanes::any(tie)) [[unlikely]] {
    upper = Lanes::either(upper, Lanes::both(tie, Lanes::less(low_draws(), k & 0xffff)));
  }
  return upper;
}

}  // namespace ldpk
