// SPDX-License-Identifier: Apache-2.0
#include "../lanes.h"
#include "kernels.h"

namespace ldpk {
const Kernels kScalarKernels = kernels_for<ScalarLanes>("scalar");
}
