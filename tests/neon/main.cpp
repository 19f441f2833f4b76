// SPDX-License-Identifier: Apache-2.0
// The NEON kernels against the scalar ones, bit for bit: every dtype, output and cipher, odd lengths, places far in the
// stream, ties. The scalar ones are checked on the build machine against the reference. Exits with 1 at a difference.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "cpu/dispatch.h"

using namespace ldpk;

namespace {

using Bytes = std::vector<uint8_t>;

constexpr int kGuard = 64;
int64_t comparisons = 0;

// splitmix64 (Steele, Lea, Flood 2014): weights of every bit pattern.
uint64_t random_bits() {
  static uint64_t state = 1;
  uint64_t z = state += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

void expect_equal(const Bytes& scalar, const Bytes& neon, const std::string& what) {
  ++comparisons;
  for (size_t i = 0; i < scalar.size(); ++i) {
    if (scalar[i] == neon[i]) continue;
    std::printf("FAILED %s: byte %zu is %02x, scalar has %02x\n", what.c_str(), i, neon[i], scalar[i]);
    std::exit(1);
  }
}

int size_of(Dtype dtype) { return dtype == Dtype::f32 ? 4 : dtype == Dtype::f64 ? 8 : 2; }

// Half of the weights are any bit pattern; the others lie about the range, where thresholds are decided.
Bytes weights(Dtype dtype, int64_t n) {
  Bytes out(n * size_of(dtype));
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t any = random_bits();
    const double near = static_cast<double>(static_cast<int64_t>(random_bits())) * 0x1p-63;
    const bool ranged = any >> 63;
    if (dtype == Dtype::f64) {
      const uint64_t bits = ranged ? bit_cast<uint64_t>(near) : any;
      std::memcpy(&out[8 * i], &bits, 8);
    } else if (dtype == Dtype::f32) {
      const uint32_t bits = ranged ? bit_cast<uint32_t>(static_cast<float>(near)) : static_cast<uint32_t>(any);
      std::memcpy(&out[4 * i], &bits, 4);
    } else {
      const uint16_t bits = dtype == Dtype::bf16 && ranged
                                ? static_cast<uint16_t>(bit_cast<uint32_t>(static_cast<float>(near)) >> 16)
                                : static_cast<uint16_t>(any);
      std::memcpy(&out[2 * i], &bits, 2);
    }
  }
  return out;
}

// The kernel of a mechanism and one of its outputs.
Kernels::RunAction kernel_of(const Kernels& kernels, std::string_view mechanism, Output output) {
  Kernels::RunAction found = nullptr;
  size_t number = 0;
  Registry::each_action([&](auto action) {
    using Action = decltype(action);
    if (Action::Entry::name == mechanism && Action::output == output) found = kernels.actions[number];
    ++number;
  });
  return found;
}

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

void check_two_point(const Key& key) {
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

// Cells as values and bytes, and turns. The values are numbers of every format, subnormal ones of fp16 among them.
void check_cells(const Key& key) {
  const PiecewiseLaw circles[] = {
      {0.125, 0x1p29, -0.25, -601882624, 601882624, 601882624, 2915819760, 1383803270, 2346193750, 1, 939524096,
       int64_t{1} << 31, 23, -0.5, 0x1p-8},
      {0.0, 0x1p30, 0.5, -7, 1 << 29, 7, 3000000001, 1234567891, 3300000007, 1, 123456789, 999999999, 22, 0.0, 0x1p-24},
  };
  for (const PiecewiseLaw& circle : circles) {
    const HybridLaw hybrid{circle, 3500000000, 123456789, 2, 987654321, 17, 200};
    for (Dtype dtype : {Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f16}) {
      for (int64_t n : {0, 1, 3, 7, 8, 9, 70, 1025, 70001}) {
        const Bytes x = weights(dtype, n);
        const std::string what = "cells of dtype " + std::to_string(static_cast<int>(dtype));
        constexpr Output outputs[] = {Output::values, Output::cells, Output::turns};
        for (int output = 0; output < 5; ++output) {
          Bytes found[2];
          for (int i : {0, 1}) {
            const Kernels& kernels = i ? kNeonKernels : kScalarKernels;
            found[i].assign(x.size() + 8 * n + 2 * kGuard, 0xEE);
            std::memcpy(found[i].data() + kGuard, x.data(), x.size());
            const auto data = reinterpret_cast<uint64_t>(found[i].data() + kGuard);
            const Span span{data, data + x.size(), n, (int64_t{1} << 35) - 24, static_cast<int64_t>(dtype)};
            if (output < 3) kernel_of(kernels, "piecewise", outputs[output])(span, &circle, key, 0, n, nullptr);
            if (output >= 3) kernel_of(kernels, "hybrid", outputs[output - 3])(span, &hybrid, key, 0, n, nullptr);
          }
          expect_equal(found[0], found[1], what);
        }
      }
    }
  }
}

// Clipped sums: squares, scales, sums and noise. Rows of any bit pattern: most of those that are long hold a NaN.
void check_clipped(const Key& key) {
  constexpr int64_t rows = 300;
  for (Dtype dtype : {Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f16}) {
    for (int64_t columns : {1, 2, 7, 70, 1030}) {
      const Bytes x = weights(dtype, rows * columns);
      for (const ClippedNoise& noise : {ClippedNoise{0.7, 3, 0, 0}, ClippedNoise{0, 3, 0x1p-26, 70001}}) {
        std::vector<double> norms[2], scales[2], totals[2], sums[2];
        Bytes out[2];
        for (int i : {0, 1}) {
          const Kernels& kernels = i ? kNeonKernels : kScalarKernels;
          norms[i].resize(2 * rows);
          scales[i].resize(2 * rows);
          totals[i].resize(columns);
          out[i].assign(8 * columns, 0xEE);
          const Span span{reinterpret_cast<uint64_t>(x.data()), reinterpret_cast<uint64_t>(out[i].data()), columns,
                          (int64_t{1} << 35) - 24, static_cast<int64_t>(dtype)};
          const double bounds[] = {0.5, 0.25};  // two layers: the second is the first
          for (int layer : {0, 1}) kernels.row_squares(span, 0, rows, 0, columns, norms[i].data() + layer, 2);
          kernels.row_scales(bounds, 2, 0, rows, norms[i].data(), scales[i].data());
          for (double& norm : norms[i]) norm = norm == norm ? norm : -1;  // the bits of a NaN are anyone's
          kernels.row_sums(span, {scales[i].data(), 2, 0}, noise.unit, 0, rows, 0, columns, totals[i].data());
          if (columns <= kNarrowColumns) {
            sums[i].assign(columns, 0);
            kernels.narrow_rows(span, 0.5, noise.unit, 0, rows, nullptr, sums[i].data());
          }
          kernels.noised(span, noise, key, 0, columns, totals[i].data());
        }
        const auto bytes = [](const std::vector<double>& v) {
          const auto* p = reinterpret_cast<const uint8_t*>(v.data());
          return Bytes(p, p + 8 * v.size());
        };
        const std::string what = " of dtype " + std::to_string(static_cast<int>(dtype));
        expect_equal(bytes(norms[0]), bytes(norms[1]), "norms" + what);
        expect_equal(bytes(scales[0]), bytes(scales[1]), "scales" + what);
        expect_equal(bytes(sums[0]), bytes(sums[1]), "sums of few columns" + what);
        expect_equal(out[0], out[1], "clipped sums" + what);
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

void check_keystream(const Key& key) {
  const int words = key.size == 8 ? 16 : 4;
  for (uint64_t start :
       {uint64_t{0}, uint64_t{31}, (uint64_t{1} << 32) - 37, (uint64_t{1} << 32) - 1, ~uint64_t{0} - 80}) {
    for (int64_t blocks : {0, 1, 2, 3, 31, 32, 33, 67}) {
      Bytes scalar(4 * words * blocks + 1), neon(scalar.size());
      kScalarKernels.keystream(key, 5, start, blocks, reinterpret_cast<uint32_t*>(scalar.data()));
      kNeonKernels.keystream(key, 5, start, blocks, reinterpret_cast<uint32_t*>(neon.data()));
      expect_equal(scalar, neon, "keystream");
    }
  }
}

// Adding reports, decoding counts, and the sums for ranges.
void check_counters_and_sums() {
  constexpr int64_t bytes = 192, n = 8 * bytes - 3;
  for (int bits = 1; bits <= 4; ++bits) {
    std::vector<Bytes> reports((1 << bits) - 1, Bytes(bytes));
    std::vector<const uint8_t*> pointers;
    for (Bytes& report : reports) {
      for (uint8_t& byte : report) byte = static_cast<uint8_t>(random_bits());
      pointers.push_back(report.data());
    }
    for (int planes = bits; planes <= 11; planes += 3) {
      std::vector<Bytes> both[2];
      Bytes decoded[2][2];
      for (int i : {0, 1}) {
        const Kernels& kernels = i ? kNeonKernels : kScalarKernels;
        both[i].assign(planes, Bytes(bytes));
        for (int p = 0; p + 1 < planes; ++p) both[i][p].assign(bytes, static_cast<uint8_t>(0x5A + 31 * p));
        std::vector<uint8_t*> at;
        for (Bytes& plane : both[i]) at.push_back(plane.data());
        kernels.count_bits(bits, pointers.data(), at.data(), planes, 0, bytes);
        const std::vector<const uint8_t*> read(at.begin(), at.end());
        decoded[i][0].resize(4 * n);
        decoded[i][1].resize(8 * n);
        kernels.decode_f32(read.data(), planes, 0, n, -1.25, 0.1, reinterpret_cast<float*>(decoded[i][0].data()));
        kernels.decode_f64(read.data(), planes, 0, n, -1.25, 0.1, reinterpret_cast<double*>(decoded[i][1].data()));
      }
      for (int p = 0; p < planes; ++p) expect_equal(both[0][p], both[1][p], "counters");
      expect_equal(decoded[0][0], decoded[1][0], "decoded fp32");
      expect_equal(decoded[0][1], decoded[1][1], "decoded fp64");
    }
  }
  for (Dtype dtype : {Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f16}) {
    for (int64_t size : {0, 1, 15, 16, 17, 1000}) {
      const Bytes x = weights(dtype, size);
      const Span span{reinterpret_cast<uint64_t>(x.data()), 0, size, 0, static_cast<int64_t>(dtype)};
      Bytes sums[2];
      for (int i : {0, 1}) {
        const Summary s = (i ? kNeonKernels : kScalarKernels).summarize(span, 0, size);
        sums[i].resize(sizeof(Summary));
        std::memcpy(sums[i].data(), &s, sizeof(Summary));
      }
      expect_equal(sums[0], sums[1], "sums");
    }
  }
}

// Normals, their product with a vector and the vector moved along them.
void check_normals(const Key& key) {
  for (Dtype dtype : {Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f16}) {
    for (int64_t size : {1, 2, 15, 16, 17, 1024, 1025, 3000}) {
      const Bytes x = weights(dtype, size);
      Bytes found[2];
      for (int i : {0, 1}) {
        const Kernels& kernels = i ? kNeonKernels : kScalarKernels;
        found[i].resize(8 * size + 8);
        const Span span{reinterpret_cast<uint64_t>(x.data()), reinterpret_cast<uint64_t>(found[i].data()), size, 24,
                        static_cast<int64_t>(dtype)};
        kernels.moved_normals(span, key, 1, 0.25, 3.0, 0, size);
        const double product = kernels.normal_product(span, key, 1, 0, size);
        std::memcpy(found[i].data() + 8 * size, &product, 8);
      }
      expect_equal(found[0], found[1], "moved normals");
    }
  }
}

// Rotations of every number of levels of a block, and of columns, at a line of the cache and beside one.
void check_rotations() {
  std::vector<float> buffer(kRotationBuffer);
  for (int levels = 0; levels <= 18; ++levels) {
    const int64_t n = int64_t{1} << levels;
    const Bytes x = weights(Dtype::bf16, 2 * n), words = weights(Dtype::bf16, 2 * ((n + 31) / 32));
    std::vector<uint32_t> signs(words.size() / 4);
    std::memcpy(signs.data(), words.data(), words.size());
    for (int offset : {0, 4}) {
      for (bool before : {true, false}) {
        Bytes found[2];
        for (int i : {0, 1}) {
          std::vector<float> memory(n + 32);
          float* data = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) / 4 + offset;
          for (int64_t k = 0; k < n; ++k)
            data[k] = static_cast<float>(static_cast<int8_t>(x[4 * k])) + x[4 * k + 1] / 255.f;
          const Kernels& kernels = i ? kNeonKernels : kScalarKernels;
          const Rotation rotation{data, signs.data(), levels, before, 0x1.6a09e6p-7f};
          const int first = levels < 17 ? levels : 12;
          for (int64_t t = 0; t < n >> first; ++t) kernels.rotate_task(rotation, 0, first, t, buffer.data());
          for (int64_t t = 0; first < levels && t < (1 << first) / kStrip; ++t)
            kernels.rotate_task(rotation, first, levels - first, t, buffer.data());
          found[i].resize(4 * n);
          std::memcpy(found[i].data(), data, 4 * n);
        }
        expect_equal(found[0], found[1], "rotation of " + std::to_string(levels) + " levels");
      }
    }
  }
}

}  // namespace

int main() {
  const Key keys[] = {{{0x89abcdef, 0x01234567}, 2}, {{1, 2, 3, 4, 0xffffffff, 6, 0x80000000, 8}, 8}};
  for (const Key& key : keys) {
    check_keystream(key);
    check_two_point(key);
    check_cells(key);
    check_clipped(key);
    check_normals(key);
    check_patterns(key);
    check_edges<float, uint32_t>(key, Dtype::f32);
    check_edges<double, uint64_t>(key, Dtype::f64);
    check_ties(key);
  }
  check_rotations();
  check_counters_and_sums();
  std::printf("neon: %lld outputs are the scalar kernels', bit for bit\n", static_cast<long long>(comparisons));
}
