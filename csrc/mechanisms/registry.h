// SPDX-License-Identifier: Apache-2.0
// The mechanisms that change each weight on its own. To add one: its header, its line in Registry. The CPU's kernels,
// the modules' functions and NumPy's description of its law follow (tables.h).
#pragma once

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>
#include <string_view>

#include "hybrid.h"
#include "ordinal_cldp.h"
#include "piecewise.h"
#include "shapes.h"
#include "sign.h"
#include "two_point.h"

namespace ldpk {

enum class Output { values, bits, thresholds, cells, turns };
constexpr std::array<std::string_view, 5> kOutputNames{"values", "bits", "thresholds", "cells", "turns"};

template <size_t size>
struct Name {
  char text[size];
  consteval Name(const char (&literal)[size]) { std::copy_n(literal, size, text); }
};

// A mechanism with one of its outputs: a kernel.
template <class EntryOf, Output output_of>
struct Action {
  using Entry = EntryOf;
  static constexpr Output output = output_of;
  static constexpr std::string_view output_name = kOutputNames[static_cast<size_t>(output)];
};

// A mechanism's name, its shape (shapes.h), and which of its shape's outputs it has.
template <Name mechanism, class ShapeOf, Output... outputs>
struct Entry {
  using Shape = ShapeOf;
  using Law = typename Shape::Law;
  static constexpr std::string_view name = mechanism.text;
  static constexpr size_t size = sizeof...(outputs);

  template <class F>
  static constexpr void each_action(F& f) {
    (f(Action<Entry, outputs>{}), ...);
  }
};

template <class... Entries>
struct Mechanisms {
  static constexpr size_t actions = (Entries::size + ...);

  // f(entry) for each mechanism, f(action) for each kernel, in order; they are values of types that say the rest.
  template <class F>
  static constexpr void each(F f) {
    (f(Entries{}), ...);
  }
  template <class F>
  static constexpr void each_action(F f) {
    (Entries::each_action(f), ...);
  }
};

using Registry = Mechanisms<Entry<"two_point", OneBit<TwoPoint>, Output::values, Output::bits, Output::thresholds>,
                            Entry<"piecewise", Cells<Piecewise>, Output::values, Output::cells, Output::turns>,
                            Entry<"hybrid", Cells<Hybrid>, Output::values, Output::cells>,
                            Entry<"ordinal_cldp", Resampled, Output::values>,
                            Entry<"sign", OneBit<Sign>, Output::values, Output::bits, Output::thresholds>>;

// How a call finds its kernel (docs/reading.md follows one). Python names it by two words, "two_point" and "values".
// The registry is a list of types: `each_action` calls a function for every mechanism with each of its outputs, with an
// empty object whose type says both, so that what the function does is compiled for that kernel. `with_action` compares
// the words with all of them and calls f(action, number) for the one that they name, among those that `Offered` has.
// The number is the action's place in the registry: an instruction set's `actions[number]` is its kernel
// (cpu/kernels.h).
template <class Offered, class F>
void with_action(std::string_view mechanism, std::string_view output, Offered, F f) {
  bool found = false;
  size_t number = 0;
  Registry::each_action([&](auto action) {
    using A = decltype(action);
    if constexpr (Offered::template has<A>()) {
      if (A::Entry::name == mechanism && A::output_name == output) {
        found = true;
        f(action, number);
      }
    }
    ++number;
  });
  if (found) return;
  std::string known;
  Registry::each_action([&](auto action) {
    using A = decltype(action);
    if constexpr (Offered::template has<A>()) {
      known.append(known.empty() ? "" : ", ").append(A::Entry::name).append(" ").append(A::output_name);
    }
  });
  throw std::invalid_argument("no kernel for '" + std::string(mechanism) + "' and '" + std::string(output) +
                              "': there are " + known);
}

}  // namespace ldpk
