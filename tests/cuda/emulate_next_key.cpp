// SPDX-License-Identifier: Apache-2.0
// The arithmetic of csrc/cuda/next_key.cuh on the host. Compiled by tests/test_cuda_static.py.
#include "../../csrc/cuda/next_key.cuh"

extern "C" void emulate(const ldpk::KeyState* state, uint64_t number, uint32_t* out) {
  ldpk::derived_key(*state, number, out);
}
