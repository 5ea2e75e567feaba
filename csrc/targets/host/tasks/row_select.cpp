// kRowSelect: the elements of a row, sorted by their steps.
#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "device/abi/roles.h"
#include "targets/host/tasks/task.h"

namespace ark::targets::host {
namespace {

using X = abi::RowSelectOperand;

class RowSelectTask : public Task {
 public:
  explicit RowSelectTask(const plan::Op& op) : op_(op) {}

  bool run(const TileEnvironment& env, int64_t first, int64_t count) const override {
    for (int64_t row = first; row < first + count; ++row)
      *address<int64_t>(env, X::kOut, row, 0) = params().by_mass != 0 ? by_mass(env, row) : by_count(env, row);
    return true;
  }
  double cost_ns() const override { return 20.0 * double(params().rows) * params().size; }

 private:
  struct Element {
    int64_t steps;
    double mass;
  };

  const abi::RowSelectParams& params() const { return op_.record.params.row_select; }

  template <class T>
  T* address(const TileEnvironment& env, int operand, int64_t row, int64_t column) const {
    const abi::Operand& x = op_.operands[static_cast<size_t>(operand)];
    return static_cast<T*>(env.slots[x.slot]) + x.offset + row * x.stride[0] + column * x.stride[1];
  }

  /// Nearest first.
  std::vector<Element> sorted(const TileEnvironment& env, int64_t row) const {
    std::vector<Element> elements(static_cast<size_t>(params().size));
    for (int64_t i = 0; i < params().size; ++i) {
      const float distance = *address<const float>(env, X::kDistance, row, i);
      const float steps = distance * abi::kSelectSteps, most = abi::kSelectFarthest;
      const bool near = steps < most;  // a NaN is not
      elements[static_cast<size_t>(i)] = {near ? static_cast<int64_t>(std::max(steps, 0.0f)) : abi::kSelectFarthest,
                                          std::isnan(distance) ? 0.0 : std::exp(-double(distance))};
    }
    std::sort(elements.begin(), elements.end(), [](const Element& a, const Element& b) { return a.steps < b.steps; });
    return elements;
  }

  int64_t by_count(const TileEnvironment& env, int64_t row) const {
    const int64_t bound = *address<const int64_t>(env, X::kBound, row, 0);
    if (bound <= 0) return 0;
    if (bound > params().size) return (int64_t{1} << abi::kSelectBits) - 1;
    return sorted(env, row)[static_cast<size_t>(bound - 1)].steps;
  }

  int64_t by_mass(const TileEnvironment& env, int64_t row) const {
    const std::vector<Element> elements = sorted(env, row);
    double all = 0, behind = 0;
    for (size_t i = elements.size(); i-- > 0;) all += elements[i].mass;
    const double limit = std::max(0.0, double{*address<const float>(env, X::kBound, row, 0)}) * all;
    for (size_t i = elements.size(); i-- > 0;) {
      behind += elements[i].mass;
      const bool whole = i == 0 || elements[i - 1].steps != elements[i].steps;  // all elements as far
      if (whole && behind > limit) return elements[i].steps;
    }
    return 0;
  }

  plan::Op op_;
};

}  // namespace

std::unique_ptr<Task> make_row_select_task(const plan::Op& op) {
  check(op.operands.size() == X::kCount, "op '", op.name, "': a row select with ", op.operands.size(), " operands");
  return std::make_unique<RowSelectTask>(op);
}

}  // namespace ark::targets::host
