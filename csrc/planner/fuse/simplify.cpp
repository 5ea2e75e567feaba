#include "planner/fuse/simplify.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <unordered_map>

#include "base/check.h"
#include "device/abi/abi.h"
#include "plan/plan.h"
#include "planner/fuse/select_values.h"

namespace ark::planner {
namespace {

using ir::Graph;
using ir::Node;
using ir::OpKind;
using ir::Size;
using ir::Value;
using ir::ValueId;

int64_t num_elements(const Value& v) {
  int64_t n = 1;
  for (const Size& s : v.sizes) n *= s.value;
  return n;
}

bool same_sizes(const Value& a, const Value& b) {
  return a.sizes.size() == b.sizes.size() &&
         std::equal(a.sizes.begin(), a.sizes.end(), b.sizes.begin(), [](Size x, Size y) { return x.value == y.value; });
}

/// Strides of dimensions of size 1 do not matter.
bool same_strides(const Value& a, const Value& b) {
  for (size_t d = 0; d < a.sizes.size(); ++d) {
    if (a.sizes[d].value > 1 && a.strides[d].value != b.strides[d].value) return false;
  }
  return a.offset.value == b.offset.value;
}

bool same_layout(const Value& a, const Value& b) {
  return a.dtype == b.dtype && same_sizes(a, b) && same_strides(a, b);
}

/// Everything that decides a node's result, as bytes; equal keys mean equal values.
class Key {
 public:
  template <class T>
  void add(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void add(const std::vector<int64_t>& list) {
    add(list.size());
    for (int64_t i : list) add(i);
  }
  void reserve(size_t bytes) { text_.reserve(bytes); }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

class Simplifier {
 public:
  explicit Simplifier(Graph& graph) : graph_(graph), same_(graph.values.size()) {
    std::iota(same_.begin(), same_.end(), 0);
    output_owner_.resize(graph.values.size(), false);
    for (ValueId id : graph.outputs) {
      const ValueId base = value(id).base;
      output_owner_[static_cast<size_t>(base < 0 ? id : base)] = true;
    }
    seen_.reserve(graph.nodes.size());
  }

  void run() {
    std::vector<Node>& nodes = graph_.nodes;
    size_t kept = 0;
    for (size_t i = 0; i < nodes.size(); ++i) {
      for (ValueId& id : nodes[i].inputs) id = same_[static_cast<size_t>(id)];
      for (ValueId id : nodes[i].outputs) {
        ValueId& base = graph_.values[static_cast<size_t>(id)].base;
        if (base >= 0) base = same_[static_cast<size_t>(base)];
      }
      if (replace(nodes[i])) continue;
      if (kept != i) nodes[kept] = std::move(nodes[i]);
      ++kept;
    }
    nodes.resize(kept);
    for (ValueId& id : graph_.outputs) id = same_[static_cast<size_t>(id)];
    remove_dead(graph_);
  }

 private:
  const Value& value(ValueId id) const { return graph_.values[static_cast<size_t>(id)]; }

  /// True when the node's output is another value, which `same_` then names.
  bool replace(const Node& node) {
    if (node.outputs.size() != 1 || node.op == OpKind::kCopyTo || node.op == OpKind::kIndexStore ||
        node.op == OpKind::kPost || node.op == OpKind::kExchange)
      return false;
    const ValueId id = node.outputs[0];
    const Value& v = value(id);
    if (node.op == OpKind::kView) {
      if (same_layout(v, value(v.base))) return set(id, v.base);
      return equal_node(node);
    }
    if (output_owner_[static_cast<size_t>(id)]) return false;
    const ValueId kept = unchanged_input(node);
    if (kept >= 0) return set(id, kept);
    return equal_node(node);
  }

  bool set(ValueId id, ValueId other) {
    same_[static_cast<size_t>(id)] = other;
    return true;
  }

  /// The input that the node merely passes on in the same layout, or -1.
  ValueId unchanged_input(const Node& node) {
    if (node.op != OpKind::kPointwise) return -1;
    const Value& v = value(node.outputs[0]);
    auto passes = [&](size_t i) {
      const Value& x = value(node.inputs[i]);
      // A value with views must stay an owner, so only owners stand in for it.
      return x.base < 0 && same_layout(v, x);
    };
    if (is_copy(graph_, node)) return passes(0) ? node.inputs[0] : -1;
    const Opcode op = node.attrs.opcode;
    if (op == Opcode::kMul || op == Opcode::kAdd || op == Opcode::kSub || op == Opcode::kDiv) {
      // Not 0: -0 + 0 is 0.
      const double neutral = op == Opcode::kMul || op == Opcode::kDiv ? 1 : op == Opcode::kAdd ? -0.0 : 0.0;
      if (passes(0) && is_scalar(node.inputs[1], neutral)) return node.inputs[0];
      const bool commutes = op == Opcode::kMul || op == Opcode::kAdd;
      if (commutes && passes(1) && is_scalar(node.inputs[0], neutral)) return node.inputs[1];
    }
    return -1;
  }

  bool is_scalar(ValueId id, double number) {
    const auto found = full_.find(id);
    if (found == full_.end()) return false;
    const Value& v = value(id);
    const auto [real, integer] = found->second;
    if (!is_float(v.dtype)) return static_cast<double>(integer) == number;
    return real == number && std::signbit(real) == std::signbit(number);
  }

  bool equal_node(const Node& node) {
    const ValueId id = node.outputs[0];
    if (node.op == OpKind::kFull) full_[id] = {node.attrs.imm, node.attrs.imm_int};
    const Value& v = value(id);
    Key key;
    key.reserve(256);
    key.add(node.op);
    for (ValueId input : node.inputs) key.add(input);
    key.add(v.dtype);
    key.add(v.base);
    key.add(v.offset.value);
    for (size_t d = 0; d < v.sizes.size(); ++d) {
      key.add(v.sizes[d].value);
      key.add(v.sizes[d].value > 1 ? v.strides[d].value : 0);
    }
    const ir::Attrs& a = node.attrs;
    key.add(a.opcode), key.add(a.reduce), key.add(a.keepdim), key.add(a.dim), key.add(a.imm), key.add(a.imm_int);
    key.add(a.start.value), key.add(a.step), key.add(a.dims), key.add(a.ints);
    key.add(a.causal), key.add(a.scale), key.add(a.rounds);
    for (int32_t m : a.map) key.add(m);
    const auto [found, fresh] = seen_.emplace(key.take(), id);
    return fresh ? false : set(id, found->second);
  }

  static void remove_dead(Graph& graph) {
    std::vector<bool> live(graph.values.size(), false);
    auto mark = [&](ValueId id) {
      live[static_cast<size_t>(id)] = true;
      const ValueId base = graph.values[static_cast<size_t>(id)].base;
      if (base >= 0) live[static_cast<size_t>(base)] = true;
    };
    for (ValueId id : graph.outputs) mark(id);
    std::vector<bool> keep(graph.nodes.size(), false);
    for (size_t i = graph.nodes.size(); i-- > 0;) {
      const Node& node = graph.nodes[i];
      // What one rank alone does not read it must send even so.
      keep[i] = node.op == OpKind::kCopyTo || node.op == OpKind::kExchange;
      for (ValueId id : node.outputs) keep[i] = keep[i] || live[static_cast<size_t>(id)];
      if (!keep[i]) continue;
      for (ValueId id : node.inputs) mark(id);
    }
    size_t kept = 0;
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      if (!keep[i]) continue;
      if (kept != i) graph.nodes[kept] = std::move(graph.nodes[i]);
      ++kept;
    }
    graph.nodes.resize(kept);
  }

  Graph& graph_;
  std::vector<ValueId> same_;
  std::vector<bool> output_owner_;
  std::unordered_map<std::string, ValueId> seen_;
  std::unordered_map<ValueId, std::pair<double, int64_t>> full_;
};

// ---- exchanges ----

/// A box is no tensor of the caller's: what is returned of it is a copy.
void copy_returned_boxes(Graph& graph) {
  std::map<ValueId, ValueId> copies;  // of boxes; -1: not made
  std::map<ValueId, Node> names;
  for (const Node& node : graph.nodes) {
    if (node.op != OpKind::kExchange) continue;
    for (ValueId box : node.outputs) {
      copies[box] = -1;
      names[box].name = node.name, names[box].module = node.module;
    }
  }
  auto add = [&](OpKind op, ValueId box, ValueId from, Value made) {
    Node node = names[box];
    node.op = op, node.attrs.opcode = Opcode::kCast, node.inputs = {from};
    node.outputs = {static_cast<ValueId>(graph.values.size())};
    graph.values.push_back(std::move(made));
    graph.nodes.push_back(std::move(node));
    return graph.nodes.back().outputs[0];
  };
  for (ValueId& out : graph.outputs) {
    Value view = graph.values[static_cast<size_t>(out)];
    const auto found = copies.find(view.base < 0 ? out : view.base);
    if (found == copies.end()) continue;
    auto& [box, copy] = *found;
    if (copy < 0) copy = add(OpKind::kPointwise, box, box, graph.values[static_cast<size_t>(box)]);
    out = copy;
    if (view.base < 0) continue;
    view.base = copy;
    out = add(OpKind::kView, box, copy, std::move(view));
  }
}

// ---- long reductions ----

constexpr int64_t kLongRow = 16384;      // elements of a row above which a few rows leave the machine idle
constexpr int64_t kShortestPart = 2048;  // of them: one vector of every thread of a worker

int64_t largest_divisor(int64_t n, int64_t limit) {
  for (int64_t d = std::min(n, limit); d > 1; --d) {
    if (n % d == 0) return d;
  }
  return 1;
}

/// The same of a row that a select may list by parts, with whole vectors in a part where there are such.
int64_t parts_of_tops(int64_t size, int64_t limit) {
  constexpr int64_t kVector = 4;
  for (int64_t d = std::min<int64_t>(limit, abi::kSelectMostTops); d >= abi::kSelectLeastTops; --d)
    if (size % (d * kVector) == 0) return d;
  return largest_divisor(size, limit);
}

std::vector<Size> contiguous(const std::vector<Size>& sizes) {
  std::vector<Size> strides(sizes.size());
  int64_t step = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    strides[d].value = step;
    step *= std::max<int64_t>(1, sizes[d].value);
  }
  return strides;
}

/// Into how many parts the reduced range should be cut.
int64_t wanted_parts(const Value& x, const Node& node, int num_workers) {
  int64_t reduced = 1, kept = 1, inner_stride = INT64_MAX;
  bool inner_reduced = true;
  for (size_t d = 0; d < x.sizes.size(); ++d) {
    const bool is_reduced = std::find(node.attrs.dims.begin(), node.attrs.dims.end(), d) != node.attrs.dims.end();
    (is_reduced ? reduced : kept) *= x.sizes[d].value;
    if (x.sizes[d].value > 1 && x.strides[d].value < inner_stride) {
      inner_stride = x.strides[d].value;
      inner_reduced = is_reduced;
    }
  }
  // Sums over columns are split by `tile`, which knows the row blocks of what they read (tile/split_reductions.h).
  if (!inner_reduced || reduced < kLongRow || kept * 2 > num_workers) return 1;
  const int64_t each = std::max<int64_t>(1, num_workers / std::max<int64_t>(1, kept));
  return std::min(reduced / each < kLongRow ? each : 2 * each, reduced / kShortestPart);
}

/// Rewrites node as two reductions; the first keeps a divisor of the outer reduced dimensions.
/// `least`: parts that a row is cut in if it is cut.
bool split_reduction(Graph& graph, const Node& node, int num_workers, int64_t least, std::vector<Node>& nodes) {
  const Value x = graph.values[static_cast<size_t>(node.inputs[0])];
  const ReduceOp reduce = node.attrs.reduce;
  if (reduce == ReduceOp::kArgMax || reduce == ReduceOp::kArgMin || num_elements(x) == 0) return false;
  int64_t wanted = wanted_parts(x, node, num_workers);
  if (wanted <= 1) return false;
  wanted = std::max(wanted, least);
  const DType out_type = graph.values[static_cast<size_t>(node.outputs[0])].dtype;
  Value cut = x;  // x with the split dimensions as two
  cut.name = x.name + ".cut";
  cut.base = x.base < 0 ? node.inputs[0] : x.base;
  cut.sizes.clear(), cut.strides.clear();
  Value part;  // result of the first
  part.name = graph.values[static_cast<size_t>(node.outputs[0])].name + ".part";
  part.dtype = compute_type(out_type);
  Value whole;  // the same, with x's rank
  Node first = node;
  first.attrs.dims.clear();
  first.attrs.keepdim = false;
  first.attrs.of_part = true;
  bool cut_any = false;
  for (size_t d = 0; d < x.sizes.size(); ++d) {
    const int64_t size = x.sizes[d].value, stride = x.strides[d].value;
    const bool is_reduced = std::find(node.attrs.dims.begin(), node.attrs.dims.end(), d) != node.attrs.dims.end();
    const auto parts_in = least > 1 ? parts_of_tops : largest_divisor;
    const int64_t outer = is_reduced ? parts_in(size, wanted) : size;
    if (is_reduced) {
      // What is left is cut from the inner dimensions only when this one is used up.
      wanted = outer == size ? wanted / outer : 1;
      cut_any |= outer > 1;
    }
    if (!is_reduced || outer > 1) {
      cut.sizes.push_back({outer}), cut.strides.push_back({stride * (is_reduced ? size / outer : 1)});
      part.sizes.push_back({outer});
    }
    whole.sizes.push_back({is_reduced ? outer : size});
    if (is_reduced) {
      first.attrs.dims.push_back(static_cast<int64_t>(cut.sizes.size()));
      cut.sizes.push_back({size / outer}), cut.strides.push_back({stride});
    }
  }
  if (!cut_any) return false;
  part.strides = contiguous(part.sizes);
  whole.name = part.name, whole.dtype = part.dtype, whole.strides = contiguous(whole.sizes);
  auto add_value = [&](Value v) {
    graph.values.push_back(std::move(v));
    return static_cast<ValueId>(graph.values.size() - 1);
  };
  auto add_view = [&](ValueId from, ValueId to) {
    Node view;
    view.op = OpKind::kView, view.inputs = {from}, view.outputs = {to}, view.name = node.name,
    view.module = node.module;
    nodes.push_back(std::move(view));
  };
  const ValueId cut_id = add_value(cut);
  add_view(node.inputs[0], cut_id);
  const ValueId part_id = add_value(part);
  first.inputs = {cut_id}, first.outputs = {part_id};
  nodes.push_back(first);
  whole.base = part_id;
  const ValueId whole_id = add_value(whole);
  add_view(part_id, whole_id);
  Node second = node;
  second.inputs = {whole_id};
  nodes.push_back(std::move(second));
  return true;
}

/// What is reduced, and over which dimensions, by the nodes that ask where the extreme is.
using Places = std::set<std::pair<ValueId, std::vector<int64_t>>>;
Places places_of(const Graph& graph) {
  Places places;
  for (const Node& node : graph.nodes) {
    const bool asks = node.attrs.reduce == ReduceOp::kArgMax || node.attrs.reduce == ReduceOp::kArgMin;
    if (node.op == OpKind::kReduce && asks) places.emplace(node.inputs[0], node.attrs.dims);
  }
  return places;
}

/// An extreme whose place is asked for as well: one op finds both, and is split by `tile` (tile/split_places.h).
bool is_beside_place(const Node& node, const Places& places) {
  const bool extreme = node.attrs.reduce == ReduceOp::kMax || node.attrs.reduce == ReduceOp::kMin;
  return extreme && places.contains({node.inputs[0], node.attrs.dims});
}

/// A select by count lists what is as near as the best ones of many parts (abi::RowSelectParams).
constexpr int64_t kPartsOfTops = 128;

/// Below which a select has its elements counted.
std::set<ValueId> tops_of_counts(const Graph& graph) {
  std::set<ValueId> distances, tops;
  for (const Node& node : graph.nodes)
    if (node.op == OpKind::kRowSelect && graph.values[static_cast<size_t>(node.inputs[1])].dtype == DType::kI64)
      distances.insert(node.inputs[0]);
  for (const Node& node : graph.nodes) {
    if (node.op != OpKind::kPointwise || node.attrs.opcode != Opcode::kSub || !distances.contains(node.outputs[0]))
      continue;
    const Value& top = graph.values[static_cast<size_t>(node.inputs[0])];
    tops.insert(top.base < 0 ? node.inputs[0] : top.base);
  }
  return tops;
}

void split_reductions(Graph& graph, int num_workers) {
  const Places places = places_of(graph);
  const std::set<ValueId> tops = tops_of_counts(graph);
  std::map<size_t, std::vector<Node>> parts;  // by the node that they stand for
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    std::vector<Node> nodes;
    if (node.op != OpKind::kReduce || is_beside_place(node, places)) continue;
    const int64_t least = tops.contains(node.outputs[0]) ? kPartsOfTops : 1;
    if (split_reduction(graph, node, num_workers, least, nodes)) parts.emplace(i, std::move(nodes));
  }
  if (parts.empty()) return;
  std::vector<Node> nodes;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const auto found = parts.find(i);
    if (found == parts.end()) {
      nodes.push_back(std::move(graph.nodes[i]));
    } else {
      std::ranges::move(found->second, std::back_inserter(nodes));
    }
  }
  graph.nodes = std::move(nodes);
}

bool is_contiguous(const Value& value) {
  int64_t step = 1;
  for (size_t d = value.sizes.size(); d-- > 0; step *= std::max<int64_t>(1, value.sizes[d].value))
    if (value.strides[d].value != step) return false;
  return true;
}

/// All boxes of an exchange, joined in their order as they lie in memory (joined_boxes.h), and read by nobody else.
bool joins_boxes(const Graph& graph, const Node& node, const std::vector<const Node*>& maker,
                 const std::map<ValueId, int>& readers) {
  if (node.op != OpKind::kCat) return false;
  const Node* exchange = maker[static_cast<size_t>(node.inputs[0])];
  if (exchange == nullptr || exchange->op != OpKind::kExchange || exchange->outputs != node.inputs) return false;
  const Value &whole = graph.values[static_cast<size_t>(node.outputs[0])],
              &box = graph.values[static_cast<size_t>(node.inputs[0])];
  int64_t bytes = size_bytes(box.dtype);
  for (const Size& size : box.sizes) bytes *= size.value;
  const bool outermost = std::all_of(whole.sizes.begin(), whole.sizes.begin() + node.attrs.dim,
                                     [](const Size& n) { return n.value == 1; });
  return outermost && bytes > 0 && plan::box_stride(bytes) == bytes && whole.dtype == box.dtype &&
         is_contiguous(whole) && is_contiguous(box) &&
         std::ranges::all_of(node.inputs, [&](ValueId x) { return readers.at(x) == 1; });
}

/// What is joined of boxes, returned, and multiplied is read from the boxes by everybody else: no product waits for the
/// copy. (Elsewhere one copy for all readers is less to move.)
void copy_returned_joins(Graph& graph) {
  std::vector<const Node*> maker(graph.values.size(), nullptr);
  std::map<ValueId, int> readers;  // of owners
  std::set<ValueId> multiplied;
  auto owner = [&](ValueId x) {
    const ValueId base = graph.values[static_cast<size_t>(x)].base;
    return base < 0 ? x : base;
  };
  for (const Node& node : graph.nodes) {
    for (ValueId out : node.outputs) maker[static_cast<size_t>(out)] = &node;
    for (ValueId in : node.inputs) readers[owner(in)] += node.op != OpKind::kView;
    if (node.op == OpKind::kMatmul) multiplied.insert(owner(node.inputs[0]));
  }
  std::map<ValueId, ValueId> boxes;  // of returned joins
  for (ValueId out : graph.outputs)
    if (const Node* node = maker[static_cast<size_t>(out)];
        node != nullptr && multiplied.contains(out) && joins_boxes(graph, *node, maker, readers))
      boxes.emplace(out, -1);
  for (ValueId out : graph.outputs)  // a view that is returned is one of the copy: left as it is
    if (owner(out) != out) boxes.erase(owner(out));
  for (auto& [out, join] : boxes) {
    join = static_cast<ValueId>(graph.values.size());
    graph.values.push_back(graph.values[static_cast<size_t>(out)]);
    for (Value& value : graph.values)
      if (value.base == out) value.base = join;
    Node copy;
    for (Node& node : graph.nodes) {
      for (std::vector<ValueId>* ids : {&node.inputs, &node.outputs}) std::ranges::replace(*ids, out, join);
      if (!node.outputs.empty() && node.outputs[0] == join) copy.name = node.name, copy.module = node.module;
    }
    copy.op = OpKind::kPointwise, copy.attrs.opcode = Opcode::kCast, copy.inputs = {join}, copy.outputs = {out};
    graph.nodes.push_back(std::move(copy));
  }
}

}  // namespace

bool is_copy(const Graph& graph, const Node& node) {
  return node.op == OpKind::kPointwise && node.attrs.opcode == Opcode::kCast &&
         graph.values[static_cast<size_t>(node.inputs[0])].dtype ==
             graph.values[static_cast<size_t>(node.outputs[0])].dtype;
}

Graph simplify(Graph bound_graph, int num_workers) {
  Simplifier(bound_graph).run();
  copy_returned_boxes(bound_graph);
  copy_returned_joins(bound_graph);
  split_reductions(bound_graph, num_workers);
  select_values(bound_graph, num_workers);
  return bound_graph;
}

}  // namespace ark::planner
