// What the integers of a program can be, instruction by instruction: for proofs about rows that are stored by index.
#pragma once
#include <limits>
#include <vector>

#include "plan/plan.h"

namespace ark::planner {

/// Values low + r + k * step with 0 <= r <= high - low and whole k >= 0 (step 0: k = 0); unknown: anything. Where
/// `from` is an operand of the op, an i64 scalar, that much more than the scalar.
struct ValueRange {
  static constexpr int64_t kEndless = std::numeric_limits<int64_t>::max() / 4;
  bool known = false;
  int64_t low = 0, high = 0, step = 0;
  int from = -1;
  bool is_number() const { return known && from < 0 && step == 0 && low == high; }
  /// Of values that are not below 0.
  bool is_count() const { return known && from < 0 && low >= 0; }
};

ValueRange added(const ValueRange& a, const ValueRange& b);
/// By a number that is not negative. From `far` on the product counts as steps of that length.
ValueRange times(const ValueRange& a, int64_t number, int64_t far);

/// Of every register of a program whose operands are those of the op from `first` on.
std::vector<ValueRange> value_ranges(const plan::Op& op, const Program& program, int first, int64_t far);

}  // namespace ark::planner
