// SPDX-License-Identifier: Apache-2.0
// Standard normals by the number of their element, a tile at a time: docs/mechanisms/clipped_noise.md.
#pragma once

#include "../mechanisms/clipped_noise.h"
#include "keystream.h"

namespace ldpk {

constexpr int64_t kNormals = 1024;  // of a tile

// Those of elements [element, element + n), n at most kNormals, to `out`, which has room for an even number; `element`
// is even. The pair of elements 2 p and 2 p + 1 has words 4 p to 4 p + 3 of the keystream.
template <class Lanes, class Cipher>
void normals(const Key& key, uint32_t stream, uint64_t element, int64_t n, double* __restrict out) {
  constexpr int64_t per_block = Cipher::block_words / 4;
  alignas(64) uint32_t words[2 * kNormals + 2 * kStepBytes / 4];
  const uint64_t pair = element / 2;
  const int64_t pairs = (n + 1) / 2, skipped = pair % per_block;
  fill<Lanes>(Cipher{}, key, stream, pair / per_block, (skipped + pairs + per_block - 1) / per_block, words);
  const uint32_t* from = words + 4 * skipped;
  for (int64_t i = 0; i < pairs; ++i) {
    double first, second;
    normal_pair(from + 4 * i, first, second);
    out[2 * i] = first;
    out[2 * i + 1] = second;
  }
}

}  // namespace ldpk
