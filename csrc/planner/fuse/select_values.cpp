#include "planner/fuse/select_values.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "device/abi/abi.h"
#include "planner/fuse/row_select.h"

namespace ark::planner {
namespace {

using ir::Graph;
using ir::Node;
using ir::OpKind;
using ir::Value;
using ir::ValueId;

class Rewriter {
 public:
  Rewriter(Graph& graph, int num_workers) : graph_(graph), num_workers_(num_workers), maker_(graph.values.size(), -1) {
    for (size_t i = 0; i < graph.nodes.size(); ++i)
      for (ValueId out : graph.nodes[i].outputs) maker_[static_cast<size_t>(out)] = static_cast<int>(i);
    removed_.assign(graph.nodes.size(), false);
  }

  void run() {
    bool any = false;
    for (size_t i = 0; i < graph_.nodes.size(); ++i)
      if (graph_.nodes[i].op == OpKind::kRowSelect && !removed_[i]) any |= rewrite(static_cast<int>(i));
    if (any) put_in_order();
  }

 private:
  const Value& value(ValueId id) const { return graph_.values[static_cast<size_t>(id)]; }
  ValueId owner(ValueId id) const { return value(id).base < 0 ? id : value(id).base; }
  /// Of an owner; -1: an input.
  int maker(ValueId id) const { return maker_[static_cast<size_t>(id)]; }
  const Node* node(ValueId id, OpKind op) const {
    const int i = maker(id);
    return i >= 0 && graph_.nodes[static_cast<size_t>(i)].op == op ? &graph_.nodes[static_cast<size_t>(i)] : nullptr;
  }
  const Node* maximum(ValueId id) const {
    const Node* found = node(owner(id), OpKind::kReduce);
    return found != nullptr && found->attrs.reduce == ReduceOp::kMax ? found : nullptr;
  }

  bool rewrite(int select) {
    Node& node_of = graph_.nodes[static_cast<size_t>(select)];
    const ValueId distance = node_of.inputs[0];
    const Node* subtract = node(distance, OpKind::kPointwise);
    if (subtract == nullptr || subtract->attrs.opcode != Opcode::kSub || value(distance).base >= 0) return false;
    const ValueId top = subtract->inputs[0], values = subtract->inputs[1];
    const Value &x = value(values), &d = value(distance);
    const int64_t rows = d.sizes[0].value, size = d.sizes[1].value;
    if (x.dtype != DType::kF32 || d.dtype != DType::kF32 || !has_sizes(x, rows, size)) return false;
    if (rows == 0 || size == 0 || select_parts(rows, size, num_workers_).count == 1) return false;
    const ValueId tops = maxima_of_parts(top, values, rows);
    if (tops < 0 || depends_on(node_of.inputs[1], distance)) return false;
    const bool listed = select_has_lists(value(node_of.inputs[1]).dtype, value(tops).sizes[1].value);
    if (listed && !are_of_all(tops, values)) return false;
    removed_[static_cast<size_t>(maker(distance))] = true;
    maker_[static_cast<size_t>(distance)] = select;
    node_of.inputs = {values, node_of.inputs[1], tops};
    node_of.outputs.push_back(distance);
    if (listed) join_cut(select, top);
    return true;
  }

  /// A select by mass among what is no farther than this one finds: a cut of it.
  void join_cut(int select, ValueId top) {
    Node& by_count = graph_.nodes[static_cast<size_t>(select)];
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& by_mass = graph_.nodes[i];
      if (by_mass.op != OpKind::kRowSelect || removed_[i] || value(by_mass.inputs[1]).dtype != DType::kF32) continue;
      if (!is_of_kept(by_mass.inputs[0], by_count, top)) continue;
      const ValueId share = by_mass.inputs[1], cut = by_mass.outputs[0];
      if (depends_on(share, by_count.outputs[0]) || depends_on(share, by_count.outputs[1])) continue;
      by_count.inputs.push_back(share);
      by_count.outputs.push_back(cut);
      maker_[static_cast<size_t>(cut)] = select;
      removed_[i] = true;
      return take_from_distances(by_mass.inputs[0], by_count.outputs[1]);
    }
  }
  /// top - where(near, values, -inf) becomes distance - where(near, 0, -inf), the same, so that nobody needs the top.
  void take_from_distances(ValueId id, ValueId distance) {
    const auto subtract = static_cast<size_t>(maker(id));
    const auto where = static_cast<size_t>(maker(graph_.nodes[subtract].inputs[1]));
    const ValueId infinity = graph_.nodes[where].inputs[2];
    const ValueId zero = copy(infinity, maker(owner(infinity)));
    graph_.nodes.back().attrs.imm = 0;
    const ValueId taken = copy(graph_.nodes[where].outputs[0], static_cast<int>(where));
    graph_.nodes.back().inputs[1] = zero;
    graph_.nodes[subtract].inputs = {distance, taken};
  }
  /// What that node makes, made again.
  ValueId copy(ValueId id, int made_by) {
    const auto made = static_cast<ValueId>(graph_.values.size());
    Value of = value(id);
    of.base = -1;
    graph_.values.push_back(std::move(of));
    Node again = graph_.nodes[static_cast<size_t>(made_by)];
    again.outputs = {made};
    maker_.push_back(static_cast<int>(graph_.nodes.size()));
    removed_.push_back(false);
    graph_.nodes.push_back(std::move(again));
    return made;
  }
  /// top - where(steps(distance) <= found, values, -inf)
  bool is_of_kept(ValueId id, const Node& by_count, ValueId top) const {
    const Value& distance = value(by_count.outputs[1]);
    const int64_t rows = distance.sizes[0].value;
    const Node* subtract = pointwise(id, Opcode::kSub);
    if (subtract == nullptr || subtract->inputs[0] != top || value(id).dtype != DType::kF32 ||
        !has_sizes(value(id), rows, distance.sizes[1].value))
      return false;
    const Node* where = pointwise(subtract->inputs[1], Opcode::kWhere);
    if (where == nullptr || where->inputs[1] != by_count.inputs[0] || !is_full(where->inputs[2], -INFINITY) ||
        value(where->inputs[2]).base >= 0 || value(subtract->inputs[1]).base >= 0)
      return false;
    const Node* near = pointwise(where->inputs[0], Opcode::kLe);
    if (near == nullptr || owner(near->inputs[1]) != by_count.outputs[0]) return false;
    const Value &found = value(near->inputs[1]), &all = value(by_count.outputs[0]);
    if (!has_sizes(found, rows, 1) || found.offset.value != 0) return false;
    if (rows > 1 && found.strides[0].value != all.strides[0].value) return false;
    return is_steps(near->inputs[0], by_count.outputs[1]);
  }
  bool is_steps(ValueId id, ValueId distance) const {
    const Node* cast = pointwise(id, Opcode::kCast);
    if (cast == nullptr || value(id).dtype != DType::kI64) return false;
    const Node* least = pointwise(cast->inputs[0], Opcode::kMinimum);
    if (least == nullptr || !is_full(least->inputs[1], abi::kSelectFarthest)) return false;
    const Node* times = pointwise(least->inputs[0], Opcode::kMul);
    return times != nullptr && times->inputs[0] == distance && is_full(times->inputs[1], abi::kSelectSteps);
  }
  const Node* pointwise(ValueId id, Opcode opcode) const {
    const Node* found = node(id, OpKind::kPointwise);
    return found != nullptr && found->attrs.opcode == opcode ? found : nullptr;
  }
  bool is_full(ValueId id, double what) const {
    const Node* found = node(owner(id), OpKind::kFull);
    return found != nullptr && value(id).dtype == DType::kF32 && found->attrs.imm == what;
  }

  static bool has_sizes(const Value& x, int64_t rows, int64_t size) {
    return x.sizes.size() == 2 && x.sizes[0].value == rows && x.sizes[1].value == size;
  }

  /// [rows, parts], whose maximum `top` [rows, 1] is, the largest of the row's `values`; or -1.
  ValueId maxima_of_parts(ValueId top, ValueId values, int64_t rows) const {
    const Value& t = value(top);
    const Node* joins = maximum(top);
    if (joins == nullptr || !has_sizes(t, rows, 1) || t.dtype != DType::kF32 || t.offset.value != 0) return -1;
    const Value& joined = value(owner(top));
    if (rows > 1 &&
        (joined.sizes.empty() || joined.sizes[0].value != rows || joined.strides[0].value != t.strides[0].value))
      return -1;
    const ValueId tops = joins->inputs[0];
    const Value& parts = value(tops);
    if (parts.sizes.size() != 2 || parts.sizes[0].value != rows || parts.dtype != DType::kF32) return -1;
    const Node* each = maximum(tops);
    if (each == nullptr || !each->attrs.of_part || joins->attrs.dims != std::vector<int64_t>{1}) return -1;
    return owner(each->inputs[0]) == owner(values) ? tops : -1;
  }

  /// Each of the maxima [R, P] is of a part of its own of a row of `values`, and the parts are all of the row.
  bool are_of_all(ValueId tops, ValueId values) const {
    const Node& each = *maximum(tops);
    const Value &x = value(values), &cut = value(each.inputs[0]), &parts = value(tops);
    const int64_t rows = x.sizes[0].value, size = x.sizes[1].value, count = parts.sizes[1].value;
    if (owner(each.inputs[0]) != owner(values) || cut.dtype != x.dtype || cut.offset.value != x.offset.value)
      return false;
    if (cut.sizes.size() != 3 || each.attrs.dims != std::vector<int64_t>{2}) return false;
    const int64_t part = cut.sizes[2].value;
    if (cut.sizes[0].value != rows || cut.sizes[1].value != count || count * part != size) return false;
    const int64_t step = x.strides[1].value;
    if ((rows > 1 && cut.strides[0].value != x.strides[0].value) || cut.strides[1].value != part * step) return false;
    if (part > 1 && cut.strides[2].value != step) return false;
    // `tops` shows what each makes as it is.
    const Value& made = value(owner(tops));
    return made.sizes.size() == 2 && made.sizes[0].value == rows && made.sizes[1].value == count &&
           parts.offset.value == 0 && parts.strides[1].value == made.strides[1].value &&
           (rows == 1 || parts.strides[0].value == made.strides[0].value);
  }

  bool depends_on(ValueId id, ValueId other) const {
    std::vector<bool> seen(graph_.nodes.size(), false);
    std::vector<ValueId> open = {id};
    while (!open.empty()) {
      const ValueId x = open.back();
      open.pop_back();
      if (x == other) return true;
      if (value(x).base >= 0) open.push_back(value(x).base);
      const int i = maker(x);
      if (i < 0 || seen[static_cast<size_t>(i)]) continue;
      seen[static_cast<size_t>(i)] = true;
      const std::vector<ValueId>& inputs = graph_.nodes[static_cast<size_t>(i)].inputs;
      open.insert(open.end(), inputs.begin(), inputs.end());
    }
    return false;
  }

  /// Distances that were read before their select come from it now: it, and what it reads, move to the front of those.
  void put_in_order() {
    placed_.assign(graph_.nodes.size(), false);
    for (size_t i = 0; i < graph_.nodes.size(); ++i) place(static_cast<int>(i));
    graph_.nodes = std::move(ordered_);
  }
  void place(int last) {
    std::vector<std::pair<int, size_t>> open = {{last, 0}};  // nodes, and how many of their inputs have been seen
    while (!open.empty()) {
      auto& [i, input] = open.back();
      const auto n = static_cast<size_t>(i);
      if (placed_[n] || removed_[n]) {
        open.pop_back();
      } else if (input < graph_.nodes[n].inputs.size()) {
        const ValueId x = graph_.nodes[n].inputs[input++];
        for (const ValueId read : {x, owner(x)})
          if (maker(read) >= 0 && !placed_[static_cast<size_t>(maker(read))]) open.emplace_back(maker(read), 0);
      } else {
        placed_[n] = true;
        ordered_.push_back(std::move(graph_.nodes[n]));
        open.pop_back();
      }
    }
  }

  Graph& graph_;
  int num_workers_;
  std::vector<int> maker_;  // per value: node, -1: an input
  std::vector<bool> removed_, placed_;
  std::vector<Node> ordered_;
};

}  // namespace

void select_values(Graph& graph, int num_workers) { Rewriter(graph, num_workers).run(); }

}  // namespace ark::planner
