// SPDX-License-Identifier: Apache-2.0
// The NEON kernels against the scalar ones, bit for bit: every dtype, output and cipher, odd lengths, places far in the
// stream, ties. The scalar ones are checked on the build machine against the reference. Exits with 1 at a difference.
#include "compare.h"
#include "cpu/aes_unit.h"

namespace ldpk::neon {
namespace {

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

// AESE's schedule, which `key` keeps, and blocks are plain logic's.
void check_aes(Key& key) {
  const AesUnit &aese = aes_unit(32 * 4), &logic = aes_unit(32);
  if (std::string_view(aese.name) != "aese" || std::string_view(logic.name) != "logic") {
    std::printf("FAILED: AES by %s and %s\n", aese.name, logic.name);
    std::exit(1);
  }
  const auto bytes = [](const uint32_t* words, int64_t count) {
    const auto* first = reinterpret_cast<const uint8_t*>(words);
    return Bytes(first, first + 4 * count);
  };
  Key other = key;
  aese.expand(key.words), logic.expand(other.words);
  expect_equal(bytes(other.words, 44), bytes(key.words, 44), "the schedule of AES");
  for (int64_t blocks : {1, 2, 8, 9, 67}) {
    std::vector<uint32_t> words[2] = {std::vector<uint32_t>(4 * blocks)};
    for (uint32_t& word : words[0]) word = static_cast<uint32_t>(random_bits());
    words[1] = words[0];
    logic.encrypt(key, blocks, words[0].data()), aese.encrypt(key, blocks, words[1].data());
    expect_equal(bytes(words[0].data(), 4 * blocks), bytes(words[1].data(), 4 * blocks), "blocks of AES");
  }
}

// Masks of all ciphers at once, of both sizes.
void check_masks(const Key* keys) {
  const bool minus[] = {false, true, false};
  for (int bits : {16, 32}) {
    for (int64_t n : {1, 7, 2048, 2049, 9000}) {
      Bytes found[2];
      for (int i : {0, 1}) {
        found[i].assign(n * bits / 8 + kGuard, 0xEE);
        const Masks masks{found[i].data(), bits, keys, minus, 3, 7, 5};
        (i ? kNeonKernels : kScalarKernels).add_masks(masks, 0, n);
      }
      expect_equal(found[0], found[1], "masks");
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
}  // namespace ldpk::neon

int main(int count, char** arguments) {
  using namespace ldpk::neon;
  if (count != 2) {
    std::fprintf(stderr, "usage: neon LAWS, the file that tests/neon/ordinal_cldp_laws.py writes\n");
    return 2;
  }
  ldpk::Key keys[] = {{{0x89abcdef, 0x01234567}, 2},
                      {{1, 2, 0xffffffff, 0x80000000}, ldpk::Aes128::key_words},
                      {{1, 2, 3, 4, 0xffffffff, 6, 0x80000000, 8}, 8}};
  check_aes(keys[1]);
  for (const ldpk::Key& key : keys) {
    check_keystream(key);
    check_two_point(key);
    check_cells(key);
    check_clipped(key);
    check_normals(key);
    check_ordinal_cldp(key, arguments[1]);
  }
  check_masks(keys);
  check_rotations();
  check_counters_and_sums();
  std::printf("neon: %lld outputs are the scalar kernels', bit for bit\n", static_cast<long long>(comparisons));
}
