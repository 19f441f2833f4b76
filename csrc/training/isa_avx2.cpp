// SPDX-License-Identifier: Apache-2.0
#include "step.h"

namespace ldpk {
void train_step_avx2(const Chain& chain, const int64_t* labels, int64_t examples) {
  Step<Machine<8, 6, 2, 12, 4, 3, 2>>::run(chain, labels, examples);
}
}  // namespace ldpk
