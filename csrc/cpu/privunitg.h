// SPDX-License-Identifier: Apache-2.0
// PrivUnitG's two passes: the product of a vector with normals, then the normals, moved along the vector. They are made
// anew for the second, which takes no longer than to keep them and no memory. docs/mechanisms/vector.md.
#pragma once

#include "dispatch.h"
#include "normals.h"
#include "sums.h"

namespace ldpk {

// use(x, g, at, n) for pieces of elements [begin, end) of a span: `n` numbers x, in fp32 or fp64, normals g, and where
// they begin. `begin` is a multiple of kPiece.
template <class Lanes, Dtype dtype, class Use>
LDPK_FN void with_normals(const Span& span, const Key& key, uint32_t stream, int64_t begin, int64_t end, Use use) {
  FloatOf<dtype> x[kPiece];
  double g[kPiece];
  for (int64_t at = begin; at < end; at += kPiece) {
    const int64_t n = end - at < kPiece ? end - at : kPiece;
    const auto* in = reinterpret_cast<const BitsOf<dtype>*>(span.data) + at;
    const uint64_t element = static_cast<uint64_t>(span.first + at);
    with_cipher(key, [&](auto cipher) { normals<Lanes, decltype(cipher)>(key, stream, element, n, g); });
    use(widened<Lanes, dtype>(in, n, x), g, at, n);
  }
}

// The sum of products of a span's elements [begin, end) with their normals, in the order of squares_of.
template <class Lanes>
double normal_product(const Span& span, const Key& key, uint32_t stream, int64_t begin, int64_t end) {
  double total = 0;
  with_dtype(span, [&](auto dtype) {
    const auto use = [&](const auto* x, const double* g, int64_t, int64_t n) { total += product_of<Lanes>(x, g, n); };
    with_normals<Lanes, dtype()>(span, key, stream, begin, end, use);
  });
  return total;
}

// (g + along x) factor for a span's elements [begin, end), x and their normals g, to span.out: fp64 for fp64, else
// fp32.
template <class Lanes>
void moved_normals(const Span& span, const Key& key, uint32_t stream, double along, double factor, int64_t begin,
                   int64_t end) {
  with_dtype(span, [&](auto dtype) {
    FloatOf<dtype()>* all = reinterpret_cast<FloatOf<dtype()>*>(span.out);
    with_normals<Lanes, dtype()>(span, key, stream, begin, end, [&](const auto* x, double* g, int64_t at, int64_t n) {
      FloatOf<dtype()>* __restrict out = all + at;
      for (int64_t i = 0; i < n; ++i)
        out[i] = static_cast<FloatOf<dtype()>>((g[i] + along * static_cast<double>(x[i])) * factor);
    });
  });
}

}  // namespace ldpk
