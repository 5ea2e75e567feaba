#include "planner/fuse/pieces.h"

#include <algorithm>
#include <utility>

namespace ark::planner {
namespace {

using ir::Node;
using ir::OpKind;

// An op for a piece costs about as much as testing, element by element, where this many bytes come from.
constexpr int64_t kPieceBytes = 64 * 1024;
constexpr int64_t kRunBytes = 64;  // shorter runs of a piece are stored about as slowly as they are selected
constexpr int64_t kFewInRuns = 8;  // what may be in shorter runs, as a part of all: 1 / kFewInRuns

/// Bytes of a piece that lie side by side in the result.
int64_t run_bytes(const Tensor& whole, const std::vector<int64_t>& sizes) {
  int64_t run = 1;
  for (bool grown = true; grown;) {
    grown = false;
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (whole.strides[d] != run || sizes[d] == 1) continue;
      run *= sizes[d];
      grown = sizes[d] == whole.sizes[d];
      break;
    }
  }
  return run * size_bytes(whole.dtype);
}

/// Inputs of a concatenation that have elements.
std::vector<int> filled(const State& state, const Node& node) {
  std::vector<int> inputs;
  for (const ir::ValueId input : node.inputs)
    if (state.tensor(input).numel > 0) inputs.push_back(input);
  return inputs;
}

/// Is `value`, of a concatenation's sizes, worth as many ops as the concatenation has pieces?
bool worth_pieces(const State& state, int value, const Node& concatenation) {
  const Tensor& whole = state.tensor(value);
  if (!state.forced[static_cast<size_t>(value)] || whole.numel == 0) return false;
  const std::vector<int> inputs = filled(state, concatenation);
  if (whole.bytes() < kPieceBytes * static_cast<int64_t>(inputs.size())) return false;
  int64_t in_short_runs = 0;
  for (const int input : inputs) {
    const Tensor& piece = state.tensor(input);
    if (run_bytes(whole, piece.sizes) < kRunBytes) in_short_runs += piece.numel * size_bytes(whole.dtype);
  }
  return in_short_runs * kFewInRuns <= whole.bytes();
}

/// Per owner: whether it is computed from inputs alone, element by element.
std::vector<bool> free_values(const State& state) {
  std::vector<bool> free(state.tensors.size(), false);
  for (const ir::ValueId input : state.graph.inputs) free[static_cast<size_t>(input)] = true;
  for (const Node& node : state.graph.nodes) {
    const bool elementwise = node.op == OpKind::kPointwise || node.op == OpKind::kFull || node.op == OpKind::kIota ||
                             node.op == OpKind::kCat || node.op == OpKind::kPad || node.op == OpKind::kRand;
    free[static_cast<size_t>(node.outputs[0])] =
        elementwise && std::all_of(node.inputs.begin(), node.inputs.end(),
                                   [&](ir::ValueId input) { return free[static_cast<size_t>(state.owner(input))]; });
  }
  return free;
}

/// The concatenation of which a value is made element by element: itself, or one below pointwise nodes; null: none.
const Node* concatenation_below(const State& state, int value, const std::vector<bool>& free, int depth = 8) {
  const Tensor& t = state.tensor(value);
  if (t.node < 0 || t.owner != value) return nullptr;
  const Node& node = state.node(t.node);
  if (node.op == OpKind::kCat) return &node;
  if (node.op != OpKind::kPointwise || !free[static_cast<size_t>(value)] || depth == 0) return nullptr;
  for (const ir::ValueId input : node.inputs) {
    if (state.tensor(input).sizes != t.sizes || state.forced[static_cast<size_t>(state.owner(input))]) continue;
    if (const Node* found = concatenation_below(state, input, free, depth - 1)) return found;
  }
  return nullptr;
}

bool has(const std::vector<Pieces>& all, int value) {
  return std::any_of(all.begin(), all.end(), [&](const Pieces& one) { return one.value == value; });
}

/// Writes the nodes of a graph anew.
class Splitter {
 public:
  Splitter(State& state, const std::vector<Pieces>& boxes) : state_(state), graph_(state.graph), boxes_(boxes) {}

  std::vector<Pieces> run() {
    const std::vector<bool> free = free_values(state_);
    std::vector<const Node*> chosen;  // per node: the concatenation whose pieces write its value
    for (const Node& node : graph_.nodes) {
      const int value = node.outputs[0];
      const bool leave = node.op == OpKind::kView || has(boxes_, value);
      const Node* found = leave ? nullptr : concatenation_below(state_, value, free);
      if (found != nullptr && has(boxes_, found->outputs[0])) found = nullptr;
      chosen.push_back(found != nullptr && worth_pieces(state_, value, *found) ? found : nullptr);
    }
    for (size_t i = 0; i < chosen.size(); ++i) {
      if (chosen[i] != nullptr)
        split(graph_.nodes[i], *chosen[i]);
      else
        nodes_.push_back(graph_.nodes[i]);
    }
    graph_.nodes = std::move(nodes_);
    return std::move(all_);
  }

 private:
  void split(const Node& node, const Node& concatenation) {
    const int value = node.outputs[0];
    std::vector<int> parts = filled(state_, concatenation);
    if (&node != &concatenation) parts = slices_of(node, parts, static_cast<size_t>(concatenation.attrs.dim));
    Pieces made{value, {}};
    for (const int part : parts) made.pieces.push_back(copy(node, part));
    Node joined = concatenation;
    joined.name = node.name, joined.module = node.module;
    joined.inputs.assign(made.pieces.begin(), made.pieces.end());
    joined.outputs = {value};
    nodes_.push_back(std::move(joined));
    all_.push_back(std::move(made));
  }

  /// The parts of what a pointwise node computes, which itself is not in memory: computed there, one piece of the
  /// concatenation is all that is looked at.
  std::vector<int> slices_of(Node node, const std::vector<int>& pieces, size_t dim) {
    const ir::Value whole = graph_.values[static_cast<size_t>(node.outputs[0])];
    const int computed = add(whole);
    node.outputs = {computed};
    nodes_.push_back(node);
    std::vector<int> parts;
    int64_t begin = 0;
    for (const int piece : pieces) {
      ir::Value part = whole;
      part.base = computed;
      part.sizes = graph_.values[static_cast<size_t>(piece)].sizes;
      part.offset.value = begin * whole.strides[dim].value;
      begin += part.sizes[dim].value;
      Node view;
      view.op = OpKind::kView;
      view.name = node.name, view.module = node.module;
      view.inputs = {computed};
      view.outputs = {add(std::move(part))};
      parts.push_back(view.outputs[0]);
      nodes_.push_back(std::move(view));
    }
    return parts;
  }

  /// A value that copies `input` into its slice of the node's value.
  int copy(const Node& node, int input) {
    ir::Value piece = graph_.values[static_cast<size_t>(node.outputs[0])];
    piece.name += ".piece";
    piece.sizes = graph_.values[static_cast<size_t>(input)].sizes;
    Node copy;
    copy.op = OpKind::kPointwise;
    copy.attrs.opcode = Opcode::kCast;
    copy.name = node.name, copy.module = node.module;
    copy.inputs = {input};
    copy.outputs = {add(std::move(piece))};
    nodes_.push_back(std::move(copy));
    return nodes_.back().outputs[0];
  }

  int add(ir::Value value) {
    graph_.values.push_back(std::move(value));
    return static_cast<int>(graph_.values.size()) - 1;
  }

  const State& state_;
  ir::Graph& graph_;
  const std::vector<Pieces>& boxes_;
  std::vector<Node> nodes_;
  std::vector<Pieces> all_;
};

}  // namespace

std::vector<Pieces> split_concatenations(State& state, const std::vector<Pieces>& boxes) {
  const std::vector<Node>& nodes = state.graph.nodes;
  const bool any = std::any_of(nodes.begin(), nodes.end(), [](const Node& node) { return node.op == OpKind::kCat; });
  return any ? Splitter(state, boxes).run() : std::vector<Pieces>{};
}

void place_pieces(State& state, const std::vector<Pieces>& all) {
  for (const Pieces& found : all) {
    const Tensor& whole = state.tensor(found.value);
    const auto dim = static_cast<size_t>(state.node(whole.node).attrs.dim);
    state.in_pieces[static_cast<size_t>(found.value)] = state.forced[static_cast<size_t>(found.value)] = true;
    int64_t begin = 0;
    for (const int piece : found.pieces) {
      const auto p = static_cast<size_t>(piece);
      state.tensors[p].strides = whole.strides;
      state.forced[p] = true;
      state.slices[p] = {found.value, begin * whole.strides[dim]};
      begin += state.tensor(piece).sizes[dim];
    }
  }
}

}  // namespace ark::planner
