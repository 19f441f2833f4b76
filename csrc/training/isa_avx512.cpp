// SPDX-License-Identifier: Apache-2.0
#include "step.h"

namespace ldpk {
void train_step_avx512(const Chain& chain, const int64_t* labels, int64_t examples) {
  Step<Machine<16, 14, 2, 28, 4, 6, 4>>::run(chain, labels, examples);
}
}  // namespace ldpk
