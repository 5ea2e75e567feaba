#include "planner/fuse/row_factor.h"

#include <algorithm>
#include <map>

namespace ark::planner {
namespace {

class Search {
 public:
  Search(const State& state, const std::vector<int>& leaves) : state_(state), leaves_(leaves) {}

  RowReduction of(int v) {
    group_ = state_.group_of[static_cast<size_t>(v)];
    if (!has_factor(v) || !plain_) return RowReduction::kBefore;
    return words_ && others_ <= 2 ? RowReduction::kSquares : RowReduction::kFactor;
  }

 private:
  const ir::Node& node_of(int v) const { return state_.node(state_.tensor(v).node); }
  int input(const ir::Node& node, size_t i) const { return state_.owner(node.inputs[i]); }
  static bool is(const ir::Node& node, Opcode op) {
    return node.op == ir::OpKind::kPointwise && node.attrs.opcode == op;
  }

  /// The way from the result back to the factor: through roundings, and products with what has none.
  bool has_factor(int v) {
    if (!is_computed(v) || !has_range(v)) return false;
    const ir::Node& node = node_of(v);
    if (is(node, Opcode::kCast)) return has_factor(input(node, 0));
    if (!is(node, Opcode::kMul) || reduced(input(node, 0)) == reduced(input(node, 1))) return false;
    const bool first = reduced(input(node, 0));
    const int of_rows = input(node, first ? 0 : 1), other = input(node, first ? 1 : 0);
    ++others_;
    words_ = words_ && is_word(other) && !is_of_rows(other, v);
    return is_of_rows(of_rows, v) ? follows_from_rows(of_rows) : has_factor(of_rows);
  }
  bool has_range(int v) const {
    return state_.tensor(v).dtype == DType::kF32 || state_.tensor(v).dtype == DType::kBF16;
  }
  /// Made of numbers and of reductions over what is read: nothing that is loaded for the row, no norm of a norm.
  bool follows_from_rows(int v) {
    if (!is_computed(v)) return false;
    const ir::Node& node = node_of(v);
    if (node.op == ir::OpKind::kFull) return true;
    if (node.op == ir::OpKind::kReduce) return !reduced(input(node, 0));
    return node.op == ir::OpKind::kPointwise &&
           std::ranges::all_of(node.inputs, [&](ir::ValueId from) { return follows_from_rows(state_.owner(from)); });
  }

  /// Free values, of no group, are computed by whoever reads them, leaves too.
  bool is_computed(int v) const {
    if (state_.is_input(v) || state_.tensor(v).node < 0 || state_.forced[static_cast<size_t>(v)]) return false;
    const int group = state_.group_of[static_cast<size_t>(v)];
    return group < 0 || (group == group_ && std::ranges::find(leaves_, v) == leaves_.end());
  }
  /// One element for each row of `whole`.
  bool is_of_rows(int v, int whole) const {
    const Tensor &t = state_.tensor(v), &x = state_.tensor(whole);
    return t.numel < x.numel && !x.sizes.empty() && t.numel * x.sizes.back() == x.numel;
  }
  /// Whether a value is read, in bfloat16, and at most widened.
  bool is_word(int v) const { return state_.tensor(narrow(v)).dtype == DType::kBF16 && !is_computed(narrow(v)); }
  int narrow(int v) const {
    if (state_.is_input(v) || state_.tensor(v).node < 0 || state_.tensor(v).dtype != DType::kF32) return v;
    return is(node_of(v), Opcode::kCast) ? narrow(input(node_of(v), 0)) : v;
  }
  bool sums_squares(const ir::Node& reduce) const {
    const int v = input(reduce, 0);
    if (reduce.attrs.reduce != ReduceOp::kSum || state_.is_input(v) || state_.tensor(v).node < 0) return false;
    const ir::Node& node = node_of(v);
    return is(node, Opcode::kMul) && narrow(input(node, 0)) == narrow(input(node, 1)) && is_word(input(node, 0));
  }
  /// Whether a value follows from a reduction.
  bool reduced(int v) {
    if (!is_computed(v)) return false;
    const auto [at, is_new] = reduced_.emplace(v, false);
    if (!is_new) return at->second;
    const ir::Node& node = node_of(v);
    if (node.op == ir::OpKind::kReduce) words_ = words_ && sums_squares(node);
    plain_ =
        plain_ && (node.op == ir::OpKind::kPointwise || node.op == ir::OpKind::kReduce || node.op == ir::OpKind::kFull);
    bool result = node.op == ir::OpKind::kReduce;
    for (const ir::ValueId from : node.inputs) result = reduced(state_.owner(from)) || result;
    return reduced_[v] = result;
  }

  const State& state_;
  const std::vector<int>& leaves_;
  int group_ = -1;  // of the value: what others store is read
  std::map<int, bool> reduced_;
  bool plain_ = true;  // nothing but arithmetic between the leaves and the result
  bool words_ = true;  // of bfloat16 are the squared and what the rows are multiplied with
  int others_ = 0;     // the latter: x, and a weight
};

}  // namespace

RowReduction row_reduction(const State& state, int value, const std::vector<int>& leaves) {
  // Who adds up what other ranks send has been decided as if the elements waited (late_sums.cpp).
  const bool adds_boxes = std::ranges::any_of(leaves, [&](int v) { return is_box(state, v); });
  if (adds_boxes || state.tensor(value).dtype != DType::kBF16) return RowReduction::kBefore;
  return Search(state, leaves).of(value);
}

}  // namespace ark::planner
