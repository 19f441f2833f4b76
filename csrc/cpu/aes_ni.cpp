// SPDX-License-Identifier: Apache-2.0
#include "aes_ni.h"

namespace ldpk {
const AesUnit kAesNi = aes_unit_of<AesNi>("aes-ni");
}
