// SPDX-License-Identifier: Apache-2.0
#include "kernels.h"
#include "lanes_avx2.h"

namespace ldpk {
const Kernels kAvx2Kernels = kernels_for<Avx2Lanes>("avx2");
}
