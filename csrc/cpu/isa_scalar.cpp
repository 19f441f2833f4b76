// SPDX-License-Identifier: Apache-2.0
#include "kernels.h"
#include "../lanes.h"

namespace ldpk {
const Kernels kScalarKernels = kernels_for<ScalarLanes>("scalar");
}
