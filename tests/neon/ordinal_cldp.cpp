// SPDX-License-Identifier: Apache-2.0
// Ordinal CLDP: weights in place, and integers to integers, under the library's laws.
#include <fstream>
#include <iterator>

#include "compare.h"

namespace ldpk::neon {
namespace {

std::vector<OrdinalCldpLaw> read_laws(const char* path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  if (bytes.empty() || bytes.size() % sizeof(OrdinalCldpLaw)) {
    std::printf("FAILED %s has %zu bytes, a law %zu\n", path, bytes.size(), sizeof(OrdinalCldpLaw));
    std::exit(1);
  }
  std::vector<OrdinalCldpLaw> laws(bytes.size() / sizeof(OrdinalCldpLaw));
  std::memcpy(laws.data(), bytes.data(), bytes.size());
  return laws;
}

// One kernel's output between guards. `x` has weights, which it overwrites, or integers, which it reads.
Bytes run(const Kernels& kernels, int64_t dtype, const Bytes& x, int64_t n, int64_t first, const OrdinalCldpLaw& law,
          const Key& key) {
  Bytes memory(x.size() + 2 * kGuard, 0xEE);
  std::memcpy(memory.data() + kGuard, x.data(), x.size());
  const auto out = reinterpret_cast<uint64_t>(memory.data() + kGuard);
  const Span span{dtype == kIntegers ? reinterpret_cast<uint64_t>(x.data()) : out, out, n, first, dtype};
  kernel_of(kernels, "ordinal_cldp", Output::values)(span, &law, key, 0, n, nullptr);
  return memory;
}

void check_law(const Key& key, const OrdinalCldpLaw& law, const std::string& name) {
  for (int64_t dtype = 0; dtype <= kIntegers; ++dtype) {
    for (int64_t n : {1, 2, 7, 31, 33, 63, 64, 65, 511, 512, 513, 1030, 9001}) {
      const Bytes x = weights(dtype == kIntegers ? Dtype::f64 : static_cast<Dtype>(dtype), n);
      for (int64_t first : {int64_t{0}, int64_t{5}, (int64_t{1} << 37) - 24}) {
        const std::string what = name + ", dtype " + std::to_string(dtype) + ", " + std::to_string(n) +
                                 " elements from " + std::to_string(first);
        const Bytes scalar = run(kScalarKernels, dtype, x, n, first, law, key);
        expect_equal(scalar, run(kNeonKernels, dtype, x, n, first, law, key), what);
        if (n > 500 && !std::memcmp(scalar.data() + kGuard, x.data(), x.size())) {
          std::printf("FAILED %s: nothing moved\n", what.c_str());
          std::exit(1);
        }
      }
    }
  }
}

}  // namespace

void check_ordinal_cldp(const Key& key, const char* path) {
  int number = 0;
  for (const OrdinalCldpLaw& law : read_laws(path))
    check_law(key, law, "ordinal CLDP, law " + std::to_string(number++));
}

}  // namespace ldpk::neon
