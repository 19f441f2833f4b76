// SPDX-License-Identifier: Apache-2.0
// AES-128 (FIPS 197) in counter mode, the default where a processor has instructions for it. The block that is
// encrypted is that of docs/rng.md, (block, block >> 32, stream, domain), as little-endian words. This is the form for
// processors without such instructions: plain logic on 64 bytes at once, without a table or a branch that depends on a
// key.
#pragma once

#include <cstring>

#include "common.h"

namespace ldpk {

struct Aes128 {
  static constexpr int key_words = 4;
  static constexpr int block_words = 4;
  static constexpr int rounds = 10;
  static_assert(sizeof(Key::words) >= sizeof(uint32_t) * block_words * (rounds + 1));

  // What is encrypted.
  static LDPK_FN void counter(uint64_t index, uint32_t stream, uint32_t domain, uint32_t* block) {
    block[0] = static_cast<uint32_t>(index), block[1] = static_cast<uint32_t>(index >> 32);
    block[2] = stream, block[3] = domain;
  }

  // FIPS 197, 5.2: the words behind the key's four, which are those of the first round. sub(w) is the S-box on the
  // bytes of a word.
  template <class Sub>
  static LDPK_FN void expand(uint32_t* words, Sub sub) {
    uint32_t constant = 1;
    for (int i = key_words; i < block_words * (rounds + 1); ++i) {
      uint32_t last = words[i - 1];
      if (i % key_words == 0) {
        last = sub(last >> 8 | last << 24) ^ constant;
        constant = constant << 1 ^ (constant >> 7) * 0x11b;
      }
      words[i] = words[i - key_words] ^ last;
    }
  }
};

// Four blocks, as eight planes of 64 bits: bit 16 n + j of plane b is bit b of byte j of block n. A column of the state
// is four neighbouring bits.
class AesPlanes {
 public:
  static constexpr int blocks = 4;

  AesPlanes() = default;
  explicit LDPK_FN AesPlanes(const uint32_t (&words)[blocks][4]) {
    uint64_t eights[8];
    memcpy(eights, words, sizeof(eights));
    for (uint64_t& eight : eights) eight = transpose_bits(eight);
    transpose_bytes(eights, planes_);
  }

  LDPK_FN void store(uint32_t (&words)[blocks][4]) const {
    uint64_t eights[8];
    transpose_bytes(planes_, eights);
    for (uint64_t& eight : eights) eight = transpose_bits(eight);
    memcpy(words, eights, sizeof(eights));
  }

  // FIPS 197, 5.1.1: the inverse in GF(2^8), which is the 254th power, then an affine map.
  LDPK_FN void sub_bytes() {
    const AesPlanes x2 = squared();
    const AesPlanes x3 = times(x2);
    const AesPlanes x12 = x3.squared().squared();
    const AesPlanes x15 = x3.times(x12);
    const AesPlanes x240 = x15.squared().squared().squared().squared();
    const AesPlanes inverse = x240.times(x12).times(x2);
    for (int b = 0; b < 8; ++b) {
      planes_[b] = 0x63 >> b & 1 ? ~uint64_t{0} : 0;
      for (int turn = 0; turn < 5; ++turn) planes_[b] ^= inverse.planes_[(b + 8 - turn) % 8];
    }
  }

  // Row r, which is bit r of each column, moves by r columns.
  LDPK_FN void shift_rows() {
    for (uint64_t& plane : planes_) {
      uint64_t moved = plane & 0x1111111111111111u;
      for (int r = 1; r < 4; ++r) {
        const uint64_t row = plane & 0x1111111111111111u << r;
        // Of each 16 bits those that a shift to the right fills; the others come round.
        const uint64_t filled = ((uint64_t{1} << (16 - 4 * r)) - 1) * 0x0001000100010001u;
        moved |= (row >> 4 * r & filled) | (row << (16 - 4 * r) & ~filled);
      }
      plane = moved;
    }
  }

  LDPK_FN void mix_columns() {
    AesPlanes next, sum;  // each row's next one, and the sum of a row with its next
    for (int b = 0; b < 8; ++b) {
      next.planes_[b] = turned<1>(planes_[b]);
      sum.planes_[b] = planes_[b] ^ next.planes_[b];
    }
    for (int b = 0; b < 8; ++b) {
      const uint64_t doubled = (b ? sum.planes_[b - 1] : 0) ^ (0x1b >> b & 1 ? sum.planes_[7] : 0);
      planes_[b] = doubled ^ next.planes_[b] ^ turned<2>(sum.planes_[b]);
    }
  }

  LDPK_FN void add(const AesPlanes& other) {
    for (int b = 0; b < 8; ++b) planes_[b] ^= other.planes_[b];
  }

 private:
  uint64_t planes_[8];

  // 8 by 8 bytes, transposed.
  static LDPK_FN void transpose_bytes(const uint64_t (&in)[8], uint64_t (&out)[8]) {
    for (int b = 0; b < 8; ++b) {
      out[b] = 0;
      for (int g = 0; g < 8; ++g) out[b] |= (in[g] >> 8 * b & 0xff) << 8 * g;
    }
  }

  template <int rows>
  static LDPK_FN uint64_t turned(uint64_t plane) {
    constexpr uint64_t stays = (uint64_t{0xf} >> rows) * 0x1111111111111111u;
    return (plane >> rows & stays) | (plane << (4 - rows) & ~stays);
  }

  // Products of polynomials modulo x^8 + x^4 + x^3 + x + 1.
  static LDPK_FN AesPlanes reduced(uint64_t (&product)[15]) {
    for (int i = 14; i >= 8; --i) {
      for (int bit : {0, 1, 3, 4}) product[i - 8 + bit] ^= product[i];
    }
    AesPlanes out;
    memcpy(out.planes_, product, sizeof(out.planes_));
    return out;
  }
  LDPK_FN AesPlanes squared() const {
    uint64_t product[15] = {};
    for (int b = 0; b < 8; ++b) product[2 * b] = planes_[b];
    return reduced(product);
  }
  LDPK_FN AesPlanes times(const AesPlanes& other) const {
    uint64_t product[15] = {};
    for (int a = 0; a < 8; ++a) {
      for (int b = 0; b < 8; ++b) product[a + b] ^= planes_[a] & other.planes_[b];
    }
    return reduced(product);
  }
};

}  // namespace ldpk
