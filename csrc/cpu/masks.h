// SPDX-License-Identifier: Apache-2.0
// Masks of a secure sum: the keystreams of many keys, added to numbers or taken from them modulo 2^16 or 2^32, a tile
// at a time. So numbers go through memory once, whatever the count of keys.
#pragma once

#include "dispatch.h"
#include "scattered.h"

namespace ldpk {

constexpr int64_t kMaskTileBytes = 4096;  // beside as much keystream in the first-level cache

template <class Lanes, class Word>
LDPK_FN void add_mask(const Key& key, bool minus, uint32_t stream, uint64_t element, int64_t n, Word* __restrict out) {
  constexpr int64_t per_block = 16 / sizeof(Word);
  int64_t done = 0;
  if (is_aes(key) && element % per_block == 0) {
    const auto add = sizeof(Word) == 2 ? aes_for<Lanes>().add16 : aes_for<Lanes>().add32;
    const int64_t blocks = add ? n / (per_block * kAesSpare) * kAesSpare : 0;
    if (blocks) add(key, minus, stream, element / per_block, blocks, out);
    done = blocks * per_block;
  }
  if (done == n) return;
  alignas(64) uint32_t buffer[(kMaskTileBytes + 2 * kStepBytes) / 4];
  const Word* mask = with_cipher(
      key, [&](auto cipher) { return draws_of<Lanes, Word>(cipher, key, stream, element + done, n - done, buffer); });
  if (minus) {
    for (int64_t i = done; i < n; ++i) out[i] -= mask[i - done];
  } else {
    for (int64_t i = done; i < n; ++i) out[i] += mask[i - done];
  }
}

template <class Lanes, class Word>
void add_masks_to(Word* numbers, const Masks& masks, int64_t begin, int64_t end) {
  constexpr int64_t tile = kMaskTileBytes / sizeof(Word);
  for (int64_t at = begin, n; at < end; at += n) {
    n = end - at < tile ? end - at : tile;
    for (int64_t k = 0; k < masks.count; ++k)
      add_mask<Lanes>(masks.keys[k], masks.minus[k], masks.stream, masks.first + at, n, numbers + at);
  }
}

// `begin` and `end` are in numbers of masks.bits bits.
template <class Lanes>
void add_masks(const Masks& masks, int64_t begin, int64_t end) {
  if (masks.bits == 16) return add_masks_to<Lanes>(static_cast<uint16_t*>(masks.numbers), masks, begin, end);
  add_masks_to<Lanes>(static_cast<uint32_t*>(masks.numbers), masks, begin, end);
}

}  // namespace ldpk
