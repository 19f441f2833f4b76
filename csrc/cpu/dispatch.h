// SPDX-License-Identifier: Apache-2.0
// One table of kernels for each instruction set, chosen when the program runs.
#pragma once

#include <array>

#include "../mechanisms/clipped_noise.h"
#include "../mechanisms/lattice_noise.h"
#include "../mechanisms/registry.h"
#include "../order.h"
#include "summary.h"

namespace ldpk {

// Votes of `parties` rows and `columns` columns, labels of one row, as uint8, int32 or int64: `bytes` says which.
struct Ballots {
  const void* votes;
  void* labels;
  uint8_t* keep;
  int64_t parties, columns, classes, bytes;
};

// The most columns that row_sums and noised take at once: what they keep on the stack. No part of the bits.
constexpr int64_t kColumns = 4096;
static_assert(kColumns % 2 == 0, "columns draw their noise in pairs");

// A sum of squares in two halves, which 2^32 squares cannot overflow: low + 2^32 high.
struct Squares {
  uint64_t low = 0, high = 0;
};

// What noised integers become: modulo a power of two as uint32, or numbers times `unit` in the span's dtype.
struct LatticeOut {
  uint32_t mask;  // 0 for numbers
  double unit;
};

// A transform of 2^levels numbers, with signs before it or after it.
struct Rotation {
  float* data;
  const uint32_t* signs;  // a bit each
  int levels;
  bool before;
  float factor;
};

// Keystreams to add to numbers of 16 or 32 bits, or where `minus` says so to subtract.
struct Masks {
  void* numbers;
  int bits;
  const Key* keys;
  const bool* minus;
  int64_t count;  // of keys
  uint32_t stream;
  uint64_t first;  // the element of the first number
};

constexpr int kBlockLevels = 12;        // of numbers that the first-level cache holds: 16 kB
constexpr int kLargeBlockLevels = 16;   // of a task of the first pass: 256 kB, for the second-level cache
constexpr int kColumnLevels = 8;        // of a later pass
constexpr int64_t kStrip = 128;         // columns of its task: pieces of 512 bytes
constexpr int64_t kHeld = kStrip + 16;  // numbers from row to row of its buffer: rows a power of two apart share no set
constexpr int64_t kRotationBuffer = kHeld << kColumnLevels;

// The most columns of a matrix whose rows lie across the lanes.
constexpr int64_t kNarrowColumns = 8;

// Keystream that small spans share, of one launch and one thread: they follow one another in the stream.
struct Shared {
  uint64_t until = 0;           // where the last of them ends
  uint64_t first = 0, end = 0;  // the elements whose draws are ready
  const uint16_t* draws[2] = {};
  alignas(64) uint32_t buffers[2][2048];
};
constexpr int64_t kSmallSpan = 256;  // elements

struct Kernels {
  // Elements [begin, end) of a span, begin a multiple of 8. The law is one of the mechanism's. `shared` may be null,
  // and is for small spans.
  using RunAction = void (*)(const Span&, const void* law, const Key&, int64_t begin, int64_t end, Shared* shared);
  const char* name;
  int bits;                                          // of a register of lanes
  std::array<RunAction, Registry::actions> actions;  // in the registry's order
  void (*keystream)(const Key&, uint32_t stream, uint64_t first_block, int64_t blocks, uint32_t* out);
  Summary (*summarize)(const Span&, int64_t begin, int64_t end);
  void (*count_bits)(int bits, const uint8_t* const* reports, uint8_t* const* planes, int plane_count, int64_t begin,
                     int64_t end);
  void (*decode_f32)(const uint8_t* const* planes, int plane_count, int64_t byte, int64_t n, double offset, double step,
                     float* out);
  void (*decode_f64)(const uint8_t* const* planes, int plane_count, int64_t byte, int64_t n, double offset, double step,
                     double* out);
  void (*row_squares)(const Span&, int64_t row, int64_t row_end, int64_t begin, int64_t end, double* out,
                      int64_t stride);
  void (*row_scales)(const double* bounds, int64_t layers, int64_t row, int64_t row_end, const double* norms,
                     double* scales);
  void (*row_sums)(const Span&, const RowScales& scales, double unit, int64_t row, int64_t row_end, int64_t begin,
                   int64_t end, double* total);
  void (*narrow_rows)(const Span&, double bound, double unit, int64_t row, int64_t row_end, double* norms,
                      double* total);
  bool (*majority)(const Ballots&, int64_t begin, int64_t end);
  void (*noised)(const Span&, const ClippedNoise&, const Key&, int64_t begin, int64_t n, double* total);
  Squares (*quantise)(const Span&, double scale, const Key*, uint32_t stream, int64_t begin, int64_t end);
  void (*noise_integers)(const NoiseTable&, const Key&, const Span&, const LatticeOut&, int64_t begin, int64_t end);
  double (*normal_product)(const Span&, const Key&, uint32_t stream, int64_t begin, int64_t end);
  void (*moved_normals)(const Span&, const Key&, uint32_t stream, double along, double factor, int64_t begin,
                        int64_t end);
  void (*rotate_task)(const Rotation&, int level, int levels, int64_t task, float* buffer);
  void (*add_masks)(const Masks&, int64_t begin, int64_t end);
  void (*reflect)(const double* normals, int64_t k, bool back, double* x);
};

extern const Kernels kScalarKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#elif defined(__aarch64__)
extern const Kernels kNeonKernels;
#endif

}  // namespace ldpk
