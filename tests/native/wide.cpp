// SPDX-License-Identifier: Apache-2.0
// csrc/laws/wide.h, for tests/test_native_laws.py: one operation on two integers of 512 bits and their signs.
#include "../../csrc/laws/wide.h"

using ldpk::Wide;

namespace {

Wide signed_one(const uint64_t* digits, bool negative) { return negative ? -Wide(digits, 8) : Wide(digits, 8); }

Wide result(int operation, const Wide& a, const Wide& b) {
  switch (operation) {
    case 0:
      return a + b;
    case 1:
      return a - b;
    case 2:
      return a * b;
    case 3:
      return floor_divided(a, b).first;
    case 4:
      return floor_divided(a, b).second;
    case 5:
      return nearest(a, b);
    case 6:
      return a << b.to_int64();
    default:
      return a < b ? -1 : a == b ? 0 : 1;
  }
}

}  // namespace

// Writes the result's digits of 62 bits, the lowest first. 0, 1 with a minus, or -1 where there is no answer.
extern "C" int wide(int operation, const uint64_t* a, bool a_negative, const uint64_t* b, bool b_negative,
                    int64_t* out) {
  try {
    const Wide found = result(operation, signed_one(a, a_negative), signed_one(b, b_negative));
    Wide left = found.abs();
    for (int i = 0; i < 9; ++i) {
      const auto [rest, digit] = floor_divided(left, Wide(1) << 62);
      out[i] = digit.to_int64();
      left = rest;
    }
    return found.negative();
  } catch (const ldpk::Declined&) {
    return -1;
  }
}
