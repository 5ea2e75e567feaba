// Which rows, and which aligned vectors of a row, a thread works on (device/program/row_places.cuh, row_kept.cuh),
// shared with the test that looks whether every element is met once: tests/codegen/test_row_vectors.cpp.
#pragma once
#include "device/abi/abi.h"

namespace ark::abi {

/// How many of a group's rows first, first + groups, ..., at most `rows` of them, lie before `end`.
ARK_ABI_BOTH constexpr int rows_before(i64 first, i64 end, int groups, int rows) {
  const i64 most = static_cast<i64>(rows) * groups, left = end - first < most ? end - first : most;
  return left > 0 ? static_cast<int>(left + groups - 1) / groups : 0;
}

/// An aligned vector of a row whose first element lies `shift` elements behind an aligned place.
struct RowVector {
  int at;         // its first element, perhaps before the row or behind it
  int place;      // where it is read: behind the row its last vector, so that some element exists
  int low, high;  // of what is read, elements [low, high) are the row's
  u32 inside;     // bit i: element at + i is the row's
};
/// Number `number` of the row's vectors of `length` elements, a power of two; the row has `size` of them, at least one.
ARK_ABI_BOTH constexpr RowVector row_vector(int number, int length, int shift, int size) {
  const int at = number * length - shift, last = (size + shift - 1) / length * length - shift;
  const int place = at < last ? at : last, low = place < 0 ? -place : 0;
  const int high = size - place < length ? size - place : length;
  return {at, place, low, high, at > last ? 0 : (1u << high) - (1u << low)};
}

}  // namespace ark::abi
