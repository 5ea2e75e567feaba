#include "planner/fuse/row_factor.h"

#include <algorithm>
#include <map>

namespace ark::planner {
namespace {

class Search {
 public:
  Search(const State& state, const std::vector<int>& leaves) : state_(state), leaves_(leaves) {}

  bool found(int v) { return has_factor(v) && plain_; }

 private:
  /// The way from the result back to the factor: through roundings, and products with what has none.
  bool has_factor(int v) {
    if (!is_computed(v)) return false;
    const ir::Node& node = state_.node(state_.tensor(v).node);
    if (node.op != ir::OpKind::kPointwise) return false;
    const auto input = [&](size_t i) { return state_.owner(node.inputs[i]); };
    if (node.attrs.opcode == Opcode::kCast) return has_factor(input(0));
    if (node.attrs.opcode != Opcode::kMul || reduced(input(0)) == reduced(input(1))) return false;
    const int of_rows = input(reduced(input(0)) ? 0 : 1);
    return is_of_rows(of_rows, v) || has_factor(of_rows);
  }

  /// Free values, of no group, are computed by whoever reads them, leaves too.
  bool is_computed(int v) const {
    if (state_.is_input(v) || state_.tensor(v).node < 0 || state_.forced[static_cast<size_t>(v)]) return false;
    return state_.group_of[static_cast<size_t>(v)] < 0 || std::ranges::find(leaves_, v) == leaves_.end();
  }
  /// One element for each row of `whole`.
  bool is_of_rows(int v, int whole) const {
    const Tensor &t = state_.tensor(v), &x = state_.tensor(whole);
    return t.numel < x.numel && !x.sizes.empty() && t.numel * x.sizes.back() == x.numel;
  }
  /// Whether a value follows from a reduction.
  bool reduced(int v) {
    if (!is_computed(v)) return false;
    const auto [at, is_new] = reduced_.emplace(v, false);
    if (!is_new) return at->second;
    const ir::Node& node = state_.node(state_.tensor(v).node);
    plain_ = plain_ && (node.op == ir::OpKind::kPointwise || node.op == ir::OpKind::kReduce);
    const bool result = node.op == ir::OpKind::kReduce || std::ranges::any_of(node.inputs, [&](ir::ValueId input) {
                          return reduced(state_.owner(input));
                        });
    return reduced_[v] = result;
  }

  const State& state_;
  const std::vector<int>& leaves_;
  std::map<int, bool> reduced_;
  bool plain_ = true;  // nothing but arithmetic between the leaves and the result
};

}  // namespace

bool has_row_factor(const State& state, int value, const std::vector<int>& leaves) {
  return state.tensor(value).dtype == DType::kBF16 && Search(state, leaves).found(value);
}

}  // namespace ark::planner
