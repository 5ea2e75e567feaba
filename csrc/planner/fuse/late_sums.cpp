#include "planner/fuse/late_sums.h"

#include <algorithm>

#include "planner/fuse/emit.h"
#include "planner/fuse/prologue_cost.h"

namespace ark::planner {
namespace {

class SumKeeper {
 public:
  explicit SumKeeper(State& state) : state_(state) {}

  void run() {
    for (int g = 0; g < static_cast<int>(state_.groups.size()); ++g) {
      const GroupKind kind = state_.groups[static_cast<size_t>(g)].kind;
      if (kind != GroupKind::kPointwise && kind != GroupKind::kRow) continue;
      const std::vector<int> values = state_.groups[static_cast<size_t>(g)].values;
      for (int x : values)
        if (is_sum(x, g)) keep(x, g);
    }
  }

 private:
  /// Of boxes, and of something else that is in memory whatever happens.
  bool is_sum(int x, int g) const {
    const auto o = static_cast<size_t>(x);
    const Tensor& t = state_.tensor(x);
    if (state_.forced[o] || t.node < 0 || state_.node(t.node).op != ir::OpKind::kPointwise) return false;
    return state_.place[o].has_value() && adds_box(x, g, kDepth);
  }
  bool adds_box(int x, int g, int depth) const {
    for (ir::ValueId input : state_.node(state_.tensor(x).node).inputs) {
      const int v = state_.owner(input);
      if (state_.is_input(v)) continue;
      if (is_box(state_, v)) return state_.tensor(v).sizes == state_.tensor(x).sizes;
      const bool passes = depth > 0 && state_.group_of[static_cast<size_t>(v)] == g &&
                          state_.node(state_.tensor(v).node).op == ir::OpKind::kPointwise;
      if (passes && adds_box(v, g, depth - 1)) return true;
    }
    return false;
  }

  /// The next product of few rows that sends values of the sum's sizes; -1: none.
  int sender_after(int x, int g, int* box) const {
    for (int p = g + 1; p < static_cast<int>(state_.groups.size()); ++p) {
      const Group& group = state_.groups[static_cast<size_t>(p)];
      if (group.kind != GroupKind::kMatmul || !group.few_rows || group.anchors.size() != 1) continue;
      for (int v : group.values) {
        const bool alike = is_box(state_, v) && state_.tensor(v).sizes == state_.tensor(x).sizes &&
                           state_.tensor(v).strides == state_.tensor(x).strides;
        if (!alike) continue;
        *box = v;
        return p;
      }
    }
    return -1;
  }

  /// The groups of what reads the sum, views and values of no group looked through.
  void readers(int x, std::vector<int>& groups, int depth) const {
    for (int user : state_.users[static_cast<size_t>(x)])
      for (ir::ValueId out : state_.node(user).outputs) {
        const int og = state_.group(out);
        if (og >= 0)
          groups.push_back(og);
        else if (depth > 0)
          readers(state_.owner(out), groups, depth - 1);
      }
  }

  void keep(int x, int g) {
    int box = -1;
    const int p = sender_after(x, g, &box);
    if (p < 0) return;
    const int world = static_cast<int>(state_.node(state_.tensor(box).node).outputs.size());
    if (2 * world + kOtherOperands > kMaxOperands) return;
    // An op of its own computes the norm and stores the sum.
    const Tensor& t = state_.tensor(x);
    const int64_t k = t.sizes.back();
    PrologueReads reads;
    reads.add(state_.tensor(box).dtype, world);
    reads.add(t.dtype, 2);  // the residual, and the norm's weight
    const Costs& costs = state_.machine.costs;
    if (prologue_seconds(costs, t.numel / k, k, reads, RowReduction::kBefore) > costs.row_op) return;
    std::vector<int> groups;
    readers(x, groups, kDepth);
    // Of no use where nobody reads it later, or where it is not the residual but a value on its way to one.
    if (std::none_of(groups.begin(), groups.end(), [&](int r) { return r > p; })) return;
    std::erase(state_.groups[static_cast<size_t>(g)].values, x);
    state_.groups[static_cast<size_t>(p)].values.push_back(x);
    state_.group_of[static_cast<size_t>(x)] = p;
    state_.place[static_cast<size_t>(x)] = state_.place[static_cast<size_t>(box)];
    state_.value_roots[static_cast<size_t>(x)] = state_.value_roots[static_cast<size_t>(box)];
    state_.kept_by[static_cast<size_t>(x)] = p;
  }

  static constexpr int kDepth = 8;          // values on the way
  static constexpr int kOtherOperands = 6;  // weight, activation, residual, the sum, and room

  State& state_;
};

}  // namespace

void keep_sums(State& state) {
  state.kept_by.assign(state.tensors.size(), -1);
  SumKeeper(state).run();
}

}  // namespace ark::planner
