// Boxes of the bytes that tiles touch, made of ranges of indices (box.h).
#pragma once
#include <algorithm>
#include <span>
#include <vector>

#include "plan/plan.h"
#include "planner/verify/box.h"

namespace ark::planner {

/// Indices [first, first + count) of a dimension, `stride` elements apart.
struct Range {
  int64_t first, count, stride;
};

/// A few ranges, without allocation: the dimensions of an operand, some of them cut in two.
struct Ranges {
  Range at[3 * abi::kMaxDims];
  int count = 0;
  void push_back(const Range& r) { at[count++] = r; }
  const Range* begin() const { return at; }
  const Range* end() const { return at + count; }
  operator std::span<const Range>() const { return {at, static_cast<size_t>(count)}; }
};

class BoxEmitter {
 public:
  BoxEmitter(const abi::Operand& x, std::vector<Box>& boxes) : x_(x), boxes_(boxes) {}

  void box(std::span<const Range> ranges);
  /// Flattened indices [begin, end) of the dimensions `flat`, times the ranges `rest`.
  void flat_range(std::span<const Range> flat, int64_t begin, int64_t end, const Ranges& rest);

 private:
  const abi::Operand& x_;
  std::vector<Box>& boxes_;
};

/// Dimensions that continue each other become one, so that a range of flattened indices is fewer boxes.
Ranges merged(std::span<const Range> dims);

/// The product of the counts.
int64_t total(std::span<const Range> part);

/// Blocks [first, first + count) of `length` indices of a dimension of `size`.
inline Range blocks_of(int64_t first, int64_t count, int64_t length, int64_t size, int64_t stride) {
  const int64_t begin = std::min(first * length, size);
  return {begin, std::min(count * length, size - begin), stride};
}

}  // namespace ark::planner
