// SPDX-License-Identifier: Apache-2.0
// The two passes of a clipped sum over one matrix: its tasks, and the order in which their results are added.
#pragma once

#include <algorithm>
#include <vector>

#include "dispatch.h"
#include "parallel.h"

namespace ldpk {

// out[row * stride] = the row's sum of squares: stretches, added in order.
inline void square_rows(const Kernels& kernels, const Span& span, int64_t rows, int64_t threads, double* out,
                        int64_t stride) {
  const int64_t stretches = divided_up(span.numel, kStretch);
  if (stretches <= 1) {
    const int64_t together = std::max<int64_t>(1, kStretch / std::max<int64_t>(span.numel, 1));
    parallel_for(divided_up(rows, together), threads, [&](int64_t t) {
      kernels.row_squares(span, t * together, std::min(rows, (t + 1) * together), 0, span.numel, out, stride);
    });
    return;
  }
  std::vector<double> parts(rows * stretches);
  parallel_for(rows * stretches, threads, [&](int64_t t) {
    const int64_t row = t / stretches, begin = t % stretches * kStretch;
    double* part = &parts[t] - row;  // of this row
    kernels.row_squares(span, row, row + 1, begin, std::min(begin + kStretch, span.numel), part, 1);
  });
  for (int64_t row = 0; row < rows; ++row) {
    double sum = 0;
    for (int64_t i = 0; i < stretches; ++i) sum += parts[row * stretches + i];
    out[row * stride] = sum;
  }
}

// The scales of rows whose norms are bounded layer by layer.
inline void scale_rows(const Kernels& kernels, const double* bounds, int64_t layers, int64_t rows, int64_t threads,
                       const double* norms, double* scales) {
  constexpr int64_t together = 1 << 14;
  parallel_for(divided_up(rows, together), threads, [&](int64_t t) {
    kernels.row_scales(bounds, layers, t * together, std::min(rows, (t + 1) * together), norms, scales);
  });
}

// Columns in tasks; rows in groups, whose fp64 sums are added in order.
inline void sum_columns(const Kernels& kernels, const Span& span, const RowScales& scales, int64_t rows,
                        const ClippedNoise& noise, const Key& key, int64_t threads) {
  const int64_t tiles = divided_up(span.numel, kColumns), groups = row_groups(rows);
  const auto sum = [&](int64_t g, int64_t begin, int64_t end, double* total) {
    kernels.row_sums(span, scales, noise.unit, g * kRowGroup, std::min(rows, (g + 1) * kRowGroup), begin, end, total);
  };
  std::vector<double> parts;
  if (groups > 1) {
    parts.resize(groups * span.numel);
    parallel_for(groups * tiles, threads, [&](int64_t t) {
      const int64_t g = t / tiles, begin = t % tiles * kColumns;
      sum(g, begin, std::min(begin + kColumns, span.numel), &parts[g * span.numel + begin]);
    });
  }
  parallel_for(tiles, threads, [&](int64_t t) {
    const int64_t begin = t * kColumns, n = std::min(kColumns, span.numel - begin);
    double total[kColumns];
    if (groups == 1) {
      sum(0, begin, begin + n, total);
    } else {
      std::copy_n(&parts[begin], n, total);
      for (int64_t g = 1; g < groups; ++g) {
        for (int64_t j = 0; j < n; ++j) total[j] += parts[g * span.numel + begin + j];
      }
    }
    kernels.noised(span, noise, key, begin, n, total);
  });
}

// A matrix of few columns, in one pass; `norms` is where its rows' go, or null.
inline void sum_narrow(const Kernels& kernels, const Span& span, double bound, int64_t rows, const ClippedNoise& noise,
                       const Key& key, int64_t threads, double* norms) {
  const int64_t groups = row_groups(rows), columns = span.numel;
  std::vector<double> parts(groups * columns);
  parallel_for(groups, threads, [&](int64_t g) {
    const int64_t begin = groups > 1 ? g * kRowGroup : 0, end = groups > 1 ? std::min(rows, begin + kRowGroup) : rows;
    kernels.narrow_rows(span, bound, noise.unit, begin, end, norms, &parts[g * columns]);
  });
  for (int64_t g = 1; g < groups; ++g) {
    for (int64_t j = 0; j < columns; ++j) parts[j] += parts[g * columns + j];
  }
  const DefaultFloatEnvironment environment;
  kernels.noised(span, noise, key, 0, columns, parts.data());
}

}  // namespace ldpk
