// SPDX-License-Identifier: Apache-2.0
// The order in which numbers are added, on every backend. These constants are part of the bits of clipped sums
// (docs/mechanisms/clipped_noise.md) and of the sums behind ranges, so no backend has another.
#pragma once

#include "common.h"

namespace ldpk {

// A row's squares: lanes of a piece, pieces of a stretch in order, stretches in order.
constexpr int kSquareLanes = 16;
constexpr int64_t kPiece = 1024;
constexpr int64_t kStretch = int64_t{1} << 16;
constexpr int kPieces = kStretch / kPiece;  // of a stretch

// A column's rows: blocks in the data's precision, blocks of a group in fp64 in order, groups in order.
constexpr int64_t kRowBlock = 64;
constexpr int64_t kRowGroup = 4096;

// Single numbers: lanes of a piece of rows in the data's precision, pieces of a group in fp64 in order, groups in
// order.
constexpr int kNumberLanes = 64;

// The sums of a tensor: lanes of a part, parts in order.
constexpr int kSummaryLanes = 16;
constexpr int64_t kSummaryPart = int64_t{1} << 16;

static_assert(kSquareLanes == 16 && kPiece == 1024 && kStretch == 65536 && kRowBlock == 64 && kRowGroup == 4096);
static_assert(kSummaryLanes == 16 && kSummaryPart == 65536);
static_assert(kPiece % kSquareLanes == 0 && kStretch % kPiece == 0 && kRowGroup % kRowBlock == 0);
static_assert(kNumberLanes == 64 && kPiece % kNumberLanes == 0 && kRowGroup % kPiece == 0);

// The sum of a piece's lanes.
LDPK_FN double sum_of_lanes(double (&lanes)[kSquareLanes]) {
  for (int half = kSquareLanes / 2; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}

LDPK_FN int64_t divided_up(int64_t n, int64_t by) { return (n + by - 1) / by; }
LDPK_FN int64_t row_groups(int64_t rows) { return rows > kRowGroup ? divided_up(rows, kRowGroup) : 1; }

}  // namespace ldpk
