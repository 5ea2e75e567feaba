// What the checks of a record share, whatever its kind: messages that name the op, its grid, its programs, its maps.
#pragma once
#include <array>
#include <vector>

#include "device/abi/roles.h"
#include "plan/plan.h"
#include "planner/verify/checks.h"

namespace ark::planner {

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

class RecordCheck {
 public:
  RecordCheck(const plan::Plan& plan, size_t index)
      : plan_(plan), index_(static_cast<int64_t>(index)), op_(plan.ops[index]) {}

  const plan::Plan& plan() const { return plan_; }
  const plan::Op& op() const { return op_; }
  const abi::OpRecord& record() const { return op_.record; }

  template <class... Args>
  void need(bool condition, const Args&... message) const {
    require(plan_, condition, describe(plan_, index_), ": ", message...);
  }
  void grid(std::array<int64_t, 3> expected) const;
  /// The program is there, of this kind, and its operands are.
  const Program& program(int number, int first, ProgramKind kind) const;
  /// The map lies where the operand does (slot, offset, type, sizes), and moves boxes of what a page holds. `strides`:
  /// elements from one to the next along the map's dimensions from the second on; along a dimension of one, anything.
  void map(int number, int operand, const std::vector<int64_t>& sizes, const std::vector<int32_t>& box,
           const std::vector<int64_t>& strides) const;

 private:
  const plan::Plan& plan_;
  int64_t index_;
  const plan::Op& op_;
};

}  // namespace ark::planner
