// SPDX-License-Identifier: Apache-2.0
#include "kernels.h"
#include "lanes_neon.h"

namespace ldpk {
const Kernels kNeonKernels = kernels_for<NeonLanes>("neon");
}
