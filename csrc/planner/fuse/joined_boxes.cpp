#include "planner/fuse/joined_boxes.h"

#include <algorithm>

namespace ark::planner {
namespace {

using ir::Node;
using ir::OpKind;

/// The exchange whose outputs a node joins, all of them in their order; null: it does something else.
const Node* joined_exchange(const State& state, const Node& node) {
  if (node.op != OpKind::kCat || !is_box(state, node.inputs[0])) return nullptr;
  const Node& exchange = state.node(state.tensor(node.inputs[0]).node);
  return exchange.outputs == node.inputs ? &exchange : nullptr;
}

/// Boxes begin at multiples of box_stride: they have no gaps if a box is one. The first dimension that is longer than 1
/// is the one along which they are joined.
bool lies_in_boxes(const Tensor& whole, const Tensor& box, int64_t dim) {
  const bool outermost = std::all_of(whole.sizes.begin(), whole.sizes.begin() + dim, [](int64_t n) { return n == 1; });
  return outermost && box.numel > 0 && plan::box_stride(box.bytes()) == box.bytes() &&
         whole.strides == contiguous_strides(whole.sizes) && box.strides == contiguous_strides(box.sizes) &&
         whole.dtype == box.dtype;
}

/// What is returned is a copy, and a box that something else reads too stays as it is.
bool read_here_alone(const State& state, const Node& exchange) {
  return std::all_of(exchange.outputs.begin(), exchange.outputs.end(), [&](ir::ValueId box) {
    return state.users[static_cast<size_t>(box)].size() == 1 && !state.tensor(box).output;
  });
}

}  // namespace

std::vector<Pieces> joined_boxes(const State& state) {
  std::vector<Pieces> all;
  for (const Node& node : state.graph.nodes) {
    const Node* exchange = joined_exchange(state, node);
    if (exchange == nullptr || !read_here_alone(state, *exchange)) continue;
    const Tensor& whole = state.tensor(node.outputs[0]);
    if (whole.output || !lies_in_boxes(whole, state.tensor(node.inputs[0]), node.attrs.dim)) continue;
    all.push_back({node.outputs[0], {node.inputs.begin(), node.inputs.end()}});
  }
  return all;
}

}  // namespace ark::planner
