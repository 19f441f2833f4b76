// SPDX-License-Identifier: Apache-2.0
// Registration: NumPy tables in, kernels out. Addresses in a table were checked by ldpkernels/inputs.
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "bindings/keystreams.h"
#include "bindings/masks.h"
#include "bindings/reports.h"
#include "bindings/rows.h"
#include "bindings/training.h"
#include "bindings/vectors.h"
#include "bindings/votes.h"
#include "bindings/weights.h"

namespace ldpk {
namespace {

// A free-threaded Python takes its lock back for this module, which does not say that it can do without: nothing else
// keeps another thread from resizing an array that a call reads. Calls give the lock up for their work, so the objects
// of this module have locks of their own.
PYBIND11_MODULE(_native, m) {
  m.doc() = "The C++ kernels of ldpkernels. The public functions are in the package.";
  register_records();
  m.attr("SPAN") = dtype_of<Span>();
  py::dict laws;
  Registry::each(
      [&](auto entry) { laws[py::str(std::string(entry.name))] = dtype_of<typename decltype(entry)::Law>(); });
  m.attr("LAWS") = laws;

  m.def("isas", [] {
    std::vector<std::string> names;
    for (const Kernels* k : available_kernels()) names.emplace_back(k->name);
    return names;
  });
  // os.environ encodes and decodes at every look; what it sets is here too.
  m.def("environment", [](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    return value ? std::optional<std::string>(value) : std::nullopt;
  });

  bind_weights(m);
  bind_keystreams(m);
  bind_masks(m);
  bind_reports(m);
  bind_votes(m);
  bind_rows(m);
  bind_vectors(m);
  bind_training(m);
}

}  // namespace
}  // namespace ldpk
