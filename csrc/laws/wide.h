// SPDX-License-Identifier: Apache-2.0
// Exact integers for laws, of up to 512 bits: sums, products, shifts and quotients rounded down, as Python has them.
// What would need more bits is given back to Python, whose integers have no end (ldpkernels/laws).
#pragma once

#include <algorithm>
#include <bit>
#include <compare>
#include <cstdint>
#include <utility>

namespace ldpk {

// No answer here: Python computes this law, or says what is wrong with it.
struct Declined {};

class Wide {
 public:
  Wide(int64_t v = 0) : negative_(v < 0) {
    limbs_[0] = v < 0 ? -static_cast<uint64_t>(v) : static_cast<uint64_t>(v);
    size_ = limbs_[0] != 0;
  }
  // From 64-bit digits, the lowest first.
  Wide(const uint64_t* digits, size_t count) {
    if (count > kLimbs) throw Declined{};
    std::copy_n(digits, count, limbs_);
    trim(static_cast<int>(count));
  }

  explicit operator bool() const { return size_ != 0; }
  bool negative() const { return negative_; }
  int bit_length() const { return size_ == 0 ? 0 : 64 * size_ - std::countl_zero(limbs_[size_ - 1]); }
  int trailing_zeros() const {
    int i = 0;
    while (i < size_ && limbs_[i] == 0) ++i;
    return i == size_ ? 0 : 64 * i + std::countr_zero(limbs_[i]);
  }
  int64_t to_int64() const {
    if (bit_length() > 63) throw Declined{};
    return negative_ ? -static_cast<int64_t>(limbs_[0]) : static_cast<int64_t>(limbs_[0]);
  }

  Wide operator-() const {
    Wide out = *this;
    out.negative_ = size_ != 0 && !negative_;
    return out;
  }
  Wide abs() const { return negative_ ? -*this : *this; }

  friend Wide operator+(const Wide& a, const Wide& b) {
    if (a.negative_ == b.negative_) return a.plus(b);
    return a.compare_sizes(b) >= 0 ? a.less(b) : b.less(a);
  }
  friend Wide operator-(const Wide& a, const Wide& b) {
    if (a.negative_ != b.negative_) return a.plus(b);
    return a.compare_sizes(b) >= 0 ? a.less(b) : -b.less(a);
  }
  friend Wide operator*(const Wide& a, const Wide& b) {
    if (a.size_ + b.size_ > kLimbs) throw Declined{};
    Wide out;
    for (int i = 0; i < a.size_; ++i) {
      uint64_t carry = 0;
      for (int j = 0; j < b.size_; ++j) {
        const Double sum = Double{a.limbs_[i]} * b.limbs_[j] + out.limbs_[i + j] + carry;
        out.limbs_[i + j] = static_cast<uint64_t>(sum);
        carry = static_cast<uint64_t>(sum >> 64);
      }
      out.limbs_[i + b.size_] = carry;
    }
    out.negative_ = a.negative_ != b.negative_;
    out.trim(a.size_ + b.size_);
    return out;
  }
  friend Wide operator<<(const Wide& a, int64_t bits) {
    if (bits < 0) throw Declined{};
    if (a.size_ == 0) return a;
    if (a.bit_length() + bits > 64 * kLimbs) throw Declined{};
    const int whole = static_cast<int>(bits / 64), part = static_cast<int>(bits % 64);
    Wide out;
    for (int i = 0; i < a.size_; ++i) {
      out.limbs_[i + whole] |= a.limbs_[i] << part;
      if (part != 0 && i + whole + 1 < kLimbs) out.limbs_[i + whole + 1] = a.limbs_[i] >> (64 - part);
    }
    out.negative_ = a.negative_;
    out.trim(std::min(a.size_ + whole + 1, kLimbs));
    return out;
  }

  friend bool operator==(const Wide& a, const Wide& b) { return a.compare(b) == 0; }
  friend auto operator<=>(const Wide& a, const Wide& b) { return a.compare(b) <=> 0; }

  // n / d rounded down, and what is left, from 0 to d - 1.
  friend std::pair<Wide, Wide> floor_divided(const Wide& n, const Wide& d) {
    if (d.size_ == 0 || d.negative_) throw Declined{};
    auto [quotient, rest] = n.abs().divided(d);
    if (!n.negative_) return {quotient, rest};
    return rest ? std::pair{-quotient - Wide(1), d - rest} : std::pair{-quotient, rest};
  }

 private:
  using Double = unsigned __int128;
  static constexpr int kLimbs = 8;

  void trim(int size) {
    while (size > 0 && limbs_[size - 1] == 0) --size;
    size_ = size;
    negative_ = negative_ && size != 0;
  }
  int compare_sizes(const Wide& b) const {
    if (size_ != b.size_) return size_ < b.size_ ? -1 : 1;
    for (int i = size_ - 1; i >= 0; --i) {
      if (limbs_[i] != b.limbs_[i]) return limbs_[i] < b.limbs_[i] ? -1 : 1;
    }
    return 0;
  }
  int compare(const Wide& b) const {
    if (negative_ != b.negative_) return negative_ ? -1 : 1;
    return negative_ ? -compare_sizes(b) : compare_sizes(b);
  }
  // The sum of both sizes, with this one's sign.
  Wide plus(const Wide& b) const {
    Wide out;
    const int size = std::max(size_, b.size_);
    uint64_t carry = 0;
    for (int i = 0; i < size; ++i) {
      const Double sum = Double{limbs_[i]} + b.limbs_[i] + carry;
      out.limbs_[i] = static_cast<uint64_t>(sum);
      carry = static_cast<uint64_t>(sum >> 64);
    }
    if (carry != 0) {
      if (size == kLimbs) throw Declined{};
      out.limbs_[size] = carry;
    }
    out.negative_ = negative_;
    out.trim(std::min(size + 1, kLimbs));
    return out;
  }
  // This size less that of b, which is no larger, with this one's sign.
  Wide less(const Wide& b) const {
    Wide out;
    uint64_t borrow = 0;
    for (int i = 0; i < size_; ++i) {
      const Double difference = Double{limbs_[i]} - b.limbs_[i] - borrow;
      out.limbs_[i] = static_cast<uint64_t>(difference);
      borrow = static_cast<uint64_t>(difference >> 64) != 0;
    }
    out.negative_ = negative_;
    out.trim(size_);
    return out;
  }

  // Of positive numbers: Knuth's algorithm D (The Art of Computer Programming, 4.3.1), with digits of 64 bits.
  std::pair<Wide, Wide> divided(const Wide& d) const {
    if (compare_sizes(d) < 0) return {Wide(), *this};
    Wide quotient;
    if (d.size_ == 1) {
      uint64_t rest = 0;
      for (int i = size_ - 1; i >= 0; --i) {
        const Double part = Double{rest} << 64 | limbs_[i];
        quotient.limbs_[i] = static_cast<uint64_t>(part / d.limbs_[0]);
        rest = static_cast<uint64_t>(part % d.limbs_[0]);
      }
      quotient.trim(size_);
      return {quotient, Wide(&rest, 1)};
    }
    // Both shifted, so that the divisor's first digit is at least half of all; the dividend has one digit more.
    const int shift = std::countl_zero(d.limbs_[d.size_ - 1]), size = d.size_;
    const Wide by = d << shift;
    uint64_t left[kLimbs + 1] = {};
    for (int i = 0; i < size_; ++i) {
      left[i] |= limbs_[i] << shift;
      if (shift != 0) left[i + 1] = limbs_[i] >> (64 - shift);
    }
    const uint64_t first = by.limbs_[size - 1], second = by.limbs_[size - 2];
    for (int j = size_ - size; j >= 0; --j) {
      const Double top = Double{left[j + size]} << 64 | left[j + size - 1];
      Double guess = left[j + size] >= first ? Double{~uint64_t{0}} : top / first;
      Double over = top - guess * first;
      while ((over >> 64) == 0 && guess * second > (over << 64 | left[j + size - 2])) {
        --guess;
        over += first;
      }
      uint64_t carry = 0, borrow = 0;
      for (int i = 0; i < size; ++i) {
        const Double product = guess * by.limbs_[i] + carry;
        carry = static_cast<uint64_t>(product >> 64);
        const Double difference = Double{left[j + i]} - static_cast<uint64_t>(product) - borrow;
        left[j + i] = static_cast<uint64_t>(difference);
        borrow = static_cast<uint64_t>(difference >> 64) != 0;
      }
      const Double last = Double{left[j + size]} - carry - borrow;
      left[j + size] = static_cast<uint64_t>(last);
      if ((last >> 64) != 0) {  // one too many, which is rare
        --guess;
        carry = 0;
        for (int i = 0; i < size; ++i) {
          const Double sum = Double{left[j + i]} + by.limbs_[i] + carry;
          left[j + i] = static_cast<uint64_t>(sum);
          carry = static_cast<uint64_t>(sum >> 64);
        }
        left[j + size] += carry;
      }
      quotient.limbs_[j] = static_cast<uint64_t>(guess);
    }
    quotient.trim(size_ - size + 1);
    for (int i = 0; shift != 0 && i < size; ++i) left[i] = left[i] >> shift | left[i + 1] << (64 - shift);
    return {quotient, Wide(left, size)};
  }

  uint64_t limbs_[kLimbs] = {};  // of the size, the lowest first
  int size_ = 0;                 // without zeros in front
  bool negative_ = false;
};

// n / d * 2^exponent rounded down; and n / d to the nearest, ties to even.
inline Wide floor_at(const Wide& n, const Wide& d, int64_t exponent) {
  return exponent >= 0 ? floor_divided(n << exponent, d).first : floor_divided(n, d << -exponent).first;
}
inline Wide floor_of(const Wide& n, const Wide& d) { return floor_divided(n, d).first; }
inline Wide ceil_of(const Wide& n, const Wide& d) { return -floor_divided(-n, d).first; }
inline bool is_odd(const Wide& n) { return n && n.trailing_zeros() == 0; }
inline Wide nearest(const Wide& n, const Wide& d) {
  const auto [below, rest] = floor_divided(n, d);
  const Wide twice = rest << 1;
  return twice > d || (twice == d && is_odd(below)) ? below + Wide(1) : below;
}

}  // namespace ldpk
