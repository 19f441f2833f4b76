// SPDX-License-Identifier: Apache-2.0
// The CUDA module with three of its eleven kernels of weights, and with all others: half of nvcc's work.
#define LDPKERNELS_CUDA_KERNELS(name, output) \
  (output == (name == "hybrid" ? "cells" : "values") && name != "sign" && name != "piecewise")
#include "../../csrc/cuda/launches.cu"
