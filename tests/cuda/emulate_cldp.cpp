// SPDX-License-Identifier: Apache-2.0
// The ordinal CLDP kernel of csrc/cuda on the host, thread by thread. Compiled by tests/test_ordinal_cldp_cuda.py.
#include "../../csrc/cuda/ordinal_cldp.cuh"

namespace ldpk {
namespace {

template <class Cipher>
void run(const Span* spans, const OrdinalCldpLaw* laws, int64_t count, const uint32_t* key) {
  for_cldp_plans<Cipher>(spans, laws, count, key, [](const CldpPlan& plan, int32_t blocks) {
    for (int32_t block = 0; block < blocks; ++block) {
      CldpShared shared;
      with_cldp_block<Cipher>(plan, block, [&](const auto& whole) {
        for (int thread = 0; thread < kCldpThreads; ++thread) shared.begin(thread, whole.law);
        for (int thread = 0; thread < kCldpThreads; ++thread) whole.begin(thread, shared);
        for (int thread = 0; thread < kCldpThreads; ++thread) whole.finish(thread, shared);
      });
    }
  });
}

}  // namespace
}  // namespace ldpk

extern "C" void emulate(const ldpk::Span* spans, const ldpk::OrdinalCldpLaw* laws, int64_t count, const uint32_t* key,
                        int key_words) {
  const bool chacha = key_words == ldpk::ChaCha20::key_words;
  (chacha ? ldpk::run<ldpk::ChaCha20> : ldpk::run<ldpk::Philox>)(spans, laws, count, key);
}
