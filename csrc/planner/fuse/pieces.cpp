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

bool worth_pieces(const State& state, const Node& node) {
  const Tensor& whole = state.tensor(node.outputs[0]);
  if (!state.forced[static_cast<size_t>(node.outputs[0])] || whole.numel == 0) return false;
  const std::vector<int> inputs = filled(state, node);
  if (whole.bytes() < kPieceBytes * static_cast<int64_t>(inputs.size())) return false;
  int64_t in_short_runs = 0;
  for (const int input : inputs) {
    const Tensor& piece = state.tensor(input);
    if (run_bytes(whole, piece.sizes) < kRunBytes) in_short_runs += piece.bytes();
  }
  return in_short_runs * kFewInRuns <= whole.bytes();
}

/// A value that copies `input` into its slice; its node stands before the concatenation.
int add_piece(ir::Graph& graph, const Node& node, ir::ValueId input, std::vector<Node>& nodes) {
  ir::Value piece = graph.values[static_cast<size_t>(node.outputs[0])];
  piece.name += ".piece";
  piece.sizes = graph.values[static_cast<size_t>(input)].sizes;
  Node copy;
  copy.op = OpKind::kPointwise;
  copy.attrs.opcode = Opcode::kCast;
  copy.name = node.name;
  copy.module = node.module;
  copy.inputs = {input};
  copy.outputs = {static_cast<ir::ValueId>(graph.values.size())};
  graph.values.push_back(std::move(piece));
  nodes.push_back(std::move(copy));
  return nodes.back().outputs[0];
}

}  // namespace

std::vector<Pieces> split_concatenations(State& state) {
  std::vector<Pieces> all;
  std::vector<Node> nodes;
  for (size_t i = 0; i < state.graph.nodes.size(); ++i) {
    Node& node = state.graph.nodes[i];
    if (node.op == OpKind::kCat && worth_pieces(state, node)) {
      Pieces found{node.outputs[0], {}};
      const std::vector<int> inputs = filled(state, node);
      for (const int input : inputs) found.pieces.push_back(add_piece(state.graph, node, input, nodes));
      node.inputs.assign(found.pieces.begin(), found.pieces.end());
      all.push_back(std::move(found));
    }
    nodes.push_back(std::move(node));
  }
  state.graph.nodes = std::move(nodes);
  return all;
}

void place_pieces(State& state, const std::vector<Pieces>& all) {
  for (const Pieces& found : all) {
    const Tensor& whole = state.tensor(found.value);
    const auto dim = static_cast<size_t>(state.node(whole.node).attrs.dim);
    state.in_pieces[static_cast<size_t>(found.value)] = true;
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
