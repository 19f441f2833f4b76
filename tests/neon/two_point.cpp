// SPDX-License-Identifier: Apache-2.0
// Two values: every output, odd lengths, places far in the stream, all 16-bit numbers, ends, halves and ties.
#include "compare.h"

namespace ldpk::neon {
namespace {

// One kernel's output between guards, which it must leave alone.
Bytes run(const Kernels& kernels, Output output, Dtype dtype, const Bytes& x, int64_t first, const TwoPointLaw& law,
          const Key& key) {
  const int64_t n = static_cast<int64_t>(x.size()) / size_of(dtype);
  const int64_t size = output == Output::values ? x.size() : output == Output::bits ? (n + 7) / 8 : 8 * n;
  Bytes memory(size + 2 * kGuard, 0xEE);
  Bytes data = x;
  if (output == Output::values) std::memcpy(memory.data() + kGuard, x.data(), x.size());
  uint8_t* out = memory.data() + kGuard;
  const Span span{reinterpret_cast<uint64_t>(output == Output::values ? out : data.data()),
                  reinterpret_cast<uint64_t>(out), n, first, static_cast<int64_t>(dtype)};
  kernel_of(kernels, "two_point", output)(span, &law, key, 0, n, nullptr);
  return memory;
}

void check_lengths(const Key& key) {
  const double none = 0.0;
  const TwoPointLaw laws[] = {
      {0.125, 0x1p30, -0.25, -(1 << 30) - 7, (1 << 30) + 9, 0x3ff0000000003c00, 0xbff000000000bc00},
      {0.0, 0x1p31, 0.5, -2147483647, 2147483647, 1, 2},
      {-0.5, 0x1.8p30, 0.0, -2147483585, 2147483583, 0x7fffffffffffffff, 0x8000000000000000},
      {1.0, 1.0, 1.0, -123456789, -123456789, 3, 4},
      {0.0, 0x1p-20, none, -5, 65537, 0xffffffffffffffff, 0},
  };
  std::vector<int64_t> lengths;
  for (int64_t n = 0; n <= 70; ++n) lengths.push_back(n);
  for (int64_t n : {1000, 1023, 1024, 1025, 2061, 70001}) lengths.push_back(n);
  for (Dtype dtype : {Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f16}) {
    for (const TwoPointLaw& law : laws) {
      for (int64_t n : lengths) {
        const Bytes x = weights(dtype, n);
        const int64_t first = n % 3 == 0 ? 0 : n % 3 == 1 ? int64_t{1} << 35 : (int64_t{1} << 37) - 24;
        for (Output output : {Output::values, Output::bits, Output::thresholds}) {
          char what[120];
          std::snprintf(what, sizeof what, "output %d of dtype %d, %lld elements from %lld, key of %d words, slope %g",
                        static_cast<int>(output), static_cast<int>(dtype), static_cast<long long>(n),
                        static_cast<long long>(first), key.size, law.slope);
          expect_equal(run(kScalarKernels, output, dtype, x, first, law, key),
                       run(kNeonKernels, output, dtype, x, first, law, key), what);
        }
      }
    }
  }
}

// All 2^16 numbers of the 16-bit formats.
void check_patterns(const Key& key) {
  Bytes x(1 << 17);
  for (int i = 0; i < 1 << 16; ++i) {
    const uint16_t bits = static_cast<uint16_t>(i);
    std::memcpy(&x[2 * i], &bits, 2);
  }
  const TwoPointLaw law{0.3, 0x1.5p29, 0.25, -1234567890, 1234567891, 7, 8};
  for (Dtype dtype : {Dtype::bf16, Dtype::f16}) {
    for (Output output : {Output::values, Output::bits, Output::thresholds}) {
      expect_equal(run(kScalarKernels, output, dtype, x, 0, law, key), run(kNeonKernels, output, dtype, x, 0, law, key),
                   "all 16-bit patterns of dtype " + std::to_string(static_cast<int>(dtype)));
    }
  }
}

// Weights whose k lies at the ends and at halves, and their neighbours: where one machine could round or clamp
// otherwise.
template <class Float, class Bits>
void check_edges(const Key& key, Dtype dtype) {
  const int64_t ends[][2] = {{-2147483647, 2147483647},
                             {-2147483583, 2147483521},
                             {-5, 65537},
                             {-16777217, 16777219},
                             {1073741864, 1073741884}};  // the last: no fp32 number between
  for (const auto& [lo, hi] : ends) {
    std::vector<double> places;
    for (int64_t k : {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{8388607}, lo, hi}) {
      for (double half : {-0.5, 0.0, 0.5}) places.push_back((static_cast<double>(k) + half) * 0x1p-31);
    }
    Bytes x;
    for (double place : places) {
      for (int step = -3; step <= 3; ++step) {
        const Bits bits = bit_cast<Bits>(static_cast<Float>(place)) + static_cast<Bits>(step);
        x.insert(x.end(), reinterpret_cast<const uint8_t*>(&bits), reinterpret_cast<const uint8_t*>(&bits + 1));
      }
    }
    const TwoPointLaw law{0.0, 0x1p31, 0.25, lo, hi, 5, 6};
    for (Output output : {Output::values, Output::bits, Output::thresholds}) {
      expect_equal(run(kScalarKernels, output, dtype, x, 0, law, key), run(kNeonKernels, output, dtype, x, 0, law, key),
                   "edges of dtype " + std::to_string(static_cast<int>(dtype)));
    }
  }
}

// Every element a tie: k has the high half of its draw, and the low half one below, at or above the draw's.
void check_ties(const Key& key) {
  constexpr int64_t n = 4096, first = 64;
  const int per_word_block = key.size == 8 ? 16 : 4;
  std::vector<uint16_t> draws[2];
  for (uint32_t stream : {0u, 1u}) {
    const int64_t per_block = 2 * per_word_block;
    std::vector<uint32_t> words((n + first) / 2);
    kScalarKernels.keystream(key, stream, 0, (n + first) / per_block, words.data());
    draws[stream].resize(n);
    std::memcpy(draws[stream].data(), reinterpret_cast<uint8_t*>(words.data()) + 2 * first, 2 * n);
  }
  const TwoPointLaw law{0.0, 1.0, 0.0, -2147483647, 2147483647, 0, 1};
  for (int shift : {-1, 0, 1}) {
    Bytes x(8 * n);
    int64_t uppers = 0;
    for (int64_t i = 0; i < n; ++i) {
      int low = draws[1][i] + shift;
      low = low < 0 ? 0 : low > 0xffff ? 0xffff : low;
      const double k = static_cast<double>(static_cast<int16_t>(draws[0][i])) * 65536 + low;
      uppers += draws[1][i] < low;
      std::memcpy(&x[8 * i], &k, 8);
    }
    const Bytes bits = run(kNeonKernels, Output::bits, Dtype::f64, x, first, law, key);
    expect_equal(run(kScalarKernels, Output::bits, Dtype::f64, x, first, law, key), bits, "ties");
    int64_t found = 0;
    for (int64_t i = 0; i < n / 8; ++i) found += __builtin_popcount(bits[kGuard + i]);
    if (found != uppers) {
      std::printf("FAILED ties: %lld of %lld were decided for upper\n", static_cast<long long>(found),
                  static_cast<long long>(uppers));
      std::exit(1);
    }
  }
}

}  // namespace

void check_two_point(const Key& key) {
  check_lengths(key);
  check_patterns(key);
  check_edges<float, uint32_t>(key, Dtype::f32);
  check_edges<double, uint64_t>(key, Dtype::f64);
  check_ties(key);
}

}  // namespace ldpk::neon
