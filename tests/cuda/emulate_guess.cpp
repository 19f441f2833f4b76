// SPDX-License-Identifier: Apache-2.0
// The guess of csrc/cuda/two_point_guess.h on the host. Compiled by tests/test_cuda_static.py.
#include "../../csrc/cuda/two_point_guess.h"

// For weights without NaN and high draws, from -2^15 to 2^15 - 1.
extern "C" void emulate(const ldpk::TwoPointLaw* law, const float* x, const float* draws, int64_t count, float* out) {
  const ldpk::TwoPointGuess guess(*law);
  for (int64_t i = 0; i < count; ++i) out[i] = guess(x[i] - guess.center, draws[i]);
}
