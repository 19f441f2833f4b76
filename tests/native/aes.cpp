// SPDX-License-Identifier: Apache-2.0
// AES under a key that was never set, for tests/test_ciphers.py under memcheck, which tells where a branch or an
// address depends on it. `aes logic` and `aes aes-ni` run a unit, `aes table` looks the key up in a table, as none may.
#include "../../csrc/cpu/aes.cpp"

#include <cstdio>
#include <cstdlib>
#include <string_view>

#if defined(__x86_64__)
#include "../../csrc/cpu/aes_ni.cpp"
namespace ldpk {
const AesUnit kVaes512{}, kVaes256{};  // memcheck knows neither
}
#elif defined(__aarch64__)
#include "../../csrc/cpu/aes_neon.cpp"
#endif

int main(int, char** arguments) {
  using namespace ldpk;
  const std::string_view name = arguments[1];
  auto* key = static_cast<Key*>(std::malloc(sizeof(Key)));
  key->size = Aes128::key_words;
  if (name == "table") {
    const unsigned char table[4] = {1, 2, 3, 4};
    const volatile unsigned char found = table[key->words[0] & 3];
    return found > 4;
  }
#if defined(__x86_64__)
  const AesUnit& unit = name == kAesNi.name ? kAesNi : kAesLogic;
#elif defined(__aarch64__)
  const AesUnit& unit = name == kAesNeon.name ? kAesNeon : kAesLogic;
#else
  const AesUnit& unit = kAesLogic;
#endif
  static uint32_t words[4 * (67 + kAesSpare)];
  unit.expand(key->words);
  unit.keystream(*key, 0, 0, 67, words);
  unit.encrypt(*key, 67, words);
  std::printf("%s\n", unit.name);
}
