// SPDX-License-Identifier: Apache-2.0
#include "kernels.h"
#include "lanes_avx512.h"

namespace ldpk {
const Kernels kAvx512Kernels = kernels_for<Avx512Lanes>("avx512");
}
