// SPDX-License-Identifier: Apache-2.0
// The fields of a table's record, named beside its struct: NumPy's description of it follows, and cannot drift.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace ldpk {

struct Field {
  const char* name;
  char kind;  // NumPy's: f, i or u of 8 bytes; V for a record
  int64_t offset;
  int64_t count;                  // of an array, else 1
  std::span<const Field> record;  // of a V
};

// T::fields, which LDPK_FIELDS makes.
template <class T>
inline constexpr auto kFields = T::fields();

template <class T>
constexpr Field field_of(const char* name, int64_t offset) {
  using One = std::remove_extent_t<T>;
  static_assert(alignof(One) == 8, "every backend can read a table as 64-bit integers");
  const int64_t count = sizeof(T) / sizeof(One);
  if constexpr (std::is_class_v<One>) {
    return {name, 'V', offset, count, kFields<One>};
  } else {
    static_assert(sizeof(One) == 8);
    return {name, std::is_floating_point_v<One> ? 'f' : std::is_signed_v<One> ? 'i' : 'u', offset, count, {}};
  }
}

// Whether the names are all of T's fields, in order.
template <class T>
constexpr bool complete_fields() {
  int64_t end = 0;
  for (const Field& field : kFields<T>) {
    if (field.offset != end) return false;
    int64_t size = 8;
    if (!field.record.empty()) size = field.record.back().offset + 8 * field.record.back().count;
    end += size * field.count;
  }
  return end == sizeof(T);
}

}  // namespace ldpk

// LDPK_EACH(f, record, a, b, ...) is f(record, a), f(record, b), ..., for at most 256 names.
#define LDPK_NONE
#define LDPK_DEFER(x) x LDPK_NONE
#define LDPK_SCAN4(...) LDPK_SCAN3(LDPK_SCAN3(LDPK_SCAN3(LDPK_SCAN3(__VA_ARGS__))))
#define LDPK_SCAN3(...) LDPK_SCAN2(LDPK_SCAN2(LDPK_SCAN2(LDPK_SCAN2(__VA_ARGS__))))
#define LDPK_SCAN2(...) LDPK_SCAN1(LDPK_SCAN1(LDPK_SCAN1(LDPK_SCAN1(__VA_ARGS__))))
#define LDPK_SCAN1(...) __VA_ARGS__
#define LDPK_EACH(f, record, ...) LDPK_SCAN4(LDPK_EACH_ONE(f, record, __VA_ARGS__))
#define LDPK_EACH_ONE(f, record, name, ...) \
  f(record, name) __VA_OPT__(, LDPK_DEFER(LDPK_EACH_AGAIN)()(f, record, __VA_ARGS__))
#define LDPK_EACH_AGAIN() LDPK_EACH_ONE

#define LDPK_FIELD(record, name) ::ldpk::field_of<decltype(record::name)>(#name, offsetof(record, name))
// In a struct of 8-byte fields, after the last of them: all their names, in order.
#define LDPK_FIELDS(record, ...) \
  static constexpr auto fields() { return std::array{LDPK_EACH(LDPK_FIELD, record, __VA_ARGS__)}; }
