// Which rows, and which vectors and elements of a row, a thread works on (device/program/row_places.cuh, row_kept.cuh),
// shared with the test that looks whether every element is met once: tests/codegen/test_row_vectors.cpp.
#pragma once
#include "device/abi/abi.h"

namespace ark::abi {

/// How many of a group's rows first, first + groups, ..., at most `rows` of them, lie before `end`.
ARK_ABI_BOTH constexpr int rows_before(i64 first, i64 end, int groups, int rows) {
  const i64 most = static_cast<i64>(rows) * groups, left = end - first < most ? end - first : most;
  return left > 0 ? static_cast<int>(left + groups - 1) / groups : 0;
}

/// The vectors of a row that begins anywhere: those that lie in it as a whole, from the first aligned place on. What is
/// beside them, its edges, are elements: fewer than a vector has at either end. Aligned rows have vectors alone.
struct RowVectors {
  int begin;  // elements before the first vector
  int count;  // at least one: rows have 2 * length - 1 elements and more, aligned ones `length` and more
};
ARK_ABI_BOTH constexpr RowVectors row_vectors(int begin, int length, int size) {
  return {begin, (size - begin) / length};
}

/// A vector or an element: `at` is its first element. Beyond the last of the row it is that one once more.
struct RowPart {
  int at;
  bool inside;
};
ARK_ABI_BOTH constexpr RowPart row_vector(const RowVectors& row, int number, int length) {
  const bool inside = number < row.count;
  return {row.begin + (inside ? number : row.count - 1) * length, inside};
}
/// Number `number` of the elements at both ends.
ARK_ABI_BOTH constexpr RowPart row_edge(const RowVectors& row, int number, int length, int size) {
  const int at = number < row.begin ? number : number + row.count * length;
  return {at < size ? at : size - 1, at < size};
}
/// Elements at both ends, at most.
ARK_ABI_BOTH constexpr int most_edges(int length) { return 2 * (length - 1); }

}  // namespace ark::abi
