// SPDX-License-Identifier: Apache-2.0
// What the module for Python asks of the kernels: nvcc compiles those without Python's headers, once for each
// architecture. The calls neither wait for the device nor copy to it: tables travel as the kernel's parameter and the
// key is read by the kernel, so that a captured CUDA graph can be replayed with another key.
#pragma once

#include <string_view>

#include "../common.h"
#include "../mechanisms/clipped_noise.h"

namespace ldpk {

// Where a launch's key lies, and where it runs.
struct Place {
  const uint32_t* key;
  int key_words;
  int device;
  uint64_t stream;
};

bool has_kernels(std::string_view mechanism);

// A mechanism's kernel over all spans; the laws are records of its own.
void launch(std::string_view mechanism, std::string_view output, const Span* spans, const void* laws, int64_t count,
            const Place& place);

// fp64 numbers of memory that a clipped sum needs besides norms and outputs.
int64_t clipped_workspace(const Span* spans, int64_t count, int64_t rows, int64_t layers);

// Sums to each span's `out` and norms, [rows, layers]; one bound for each layer.
void clipped_sums(const Span* spans, int64_t count, const double* bounds, int64_t layers, int64_t rows,
                  const ClippedNoise& noise, double* norms, double* workspace, const Place& place);

// Blocks of a keystream, for known-answer tests.
void keystream(uint32_t stream_number, uint64_t first_block, int64_t blocks, uint32_t* out, const Place& place);

// The next key of a device's state, of 40 bytes, to eight words.
void next_key(void* state, uint32_t* out, const Place& place);

}  // namespace ldpk
