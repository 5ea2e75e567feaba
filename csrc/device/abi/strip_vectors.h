// Which k a thread multiplies in a strip (device/matmul/few_rows_strips.cuh), shared with the test that looks whether
// every k is met once: tests/codegen/test_strip_vectors.cpp.
//
// Of a row's part in a page, a warp has 64 k in every 512 (a round), lane q of the row's four two vectors of 8 of them:
// a half each. Vectors are numbered along k; those of a window have the numbers of the fragments that hold the
// activation.
#pragma once
#include "device/abi/abi.h"

namespace ark::abi {

inline constexpr int kStripRoundK = 512;
/// Rounds of a page of rows of k elements.
ARK_ABI_BOTH constexpr int strip_rounds(int k) { return strip_page_k(k) / kStripRoundK; }
/// Number of a thread's vector, slices counted from the window's first.
ARK_ABI_BOTH constexpr int strip_vector(int k, int slice, int round, int half) {
  return (slice * strip_rounds(k) + round) * 2 + half;
}
/// Its first k, counted from the window's.
ARK_ABI_BOTH constexpr int strip_vector_k(int number, int warp, int q) {
  const int round = number / 2;  // of all slices: their rounds follow each other
  return round * kStripRoundK + warp * 64 + number % 2 * 32 + q * 8;
}
/// Its byte in the row's part of a page.
ARK_ABI_BOTH constexpr int strip_vector_byte(int round, int half, int warp, int q) {
  return round * (kStripRoundK * 2) + warp * 128 + half * 64 + q * 16;
}

}  // namespace ark::abi
