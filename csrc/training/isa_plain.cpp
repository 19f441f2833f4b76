// SPDX-License-Identifier: Apache-2.0
#include "step.h"

namespace ldpk {
void train_step_plain(const Chain& chain, const int64_t* labels, int64_t examples) {
  Step<Machine<4, 6, 4, 24, 4, 5, 4>>::run(chain, labels, examples);
}
}  // namespace ldpk
