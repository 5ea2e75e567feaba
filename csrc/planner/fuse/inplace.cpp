// Which index stores write over their destination: a graph input that nobody else reads and that CopyTo overwrites with
// the result (a key-value cache). Every other CopyTo becomes a store at the end of the plan, after all readers of the
// old value.
#include <algorithm>

#include "planner/fuse/state.h"

namespace ark::planner {
namespace {

using ir::Node;
using ir::OpKind;

/// The CopyTo that writes the whole of `out` (or of what later index stores made of it) back to input `dst`, through a
/// chain of stores.
bool ends_in_copy(const State& state, int out, int dst) {
  for (const Node& node : state.graph.nodes) {
    if (node.op != OpKind::kCopyTo || node.inputs[1] != out) continue;
    const Tensor& target = state.tensor(node.inputs[0]);
    const Tensor& whole = state.tensor(dst);
    if (target.owner == dst && target.offset == 0 && target.sizes == whole.sizes && target.strides == whole.strides)
      return true;
  }
  return false;
}

bool has_other_readers(const State& state, int owner, int reader, int dst) {
  for (int i : state.users[static_cast<size_t>(owner)]) {
    const Node& node = state.node(i);
    if (node.op == OpKind::kCopyTo && state.owner(node.inputs[0]) == dst && state.owner(node.inputs[1]) != owner)
      continue;
    if (node.op == OpKind::kView) {
      // A view counts through its own readers, which are users of the owner as well.
      continue;
    }
    if (i != reader) return true;
  }
  return false;
}

}  // namespace

bool is_copy_node(const State& state, int node) {
  if (node < 0) return false;
  const Node& n = state.node(node);
  return n.op == OpKind::kPointwise && n.attrs.opcode == Opcode::kCast &&
         state.tensor(n.inputs[0]).dtype == state.tensor(n.outputs[0]).dtype;
}

bool is_select_store(const State& state, const Node& node) {
  const std::vector<int64_t>& src = state.tensor(node.inputs[1]).sizes;
  for (size_t d = 0; d < src.size(); ++d) {
    const bool mapped =
        std::find(node.attrs.map.begin(), node.attrs.map.end(), static_cast<int32_t>(d)) != node.attrs.map.end();
    if (!mapped && src[d] != 1) return false;
  }
  return true;
}

void find_in_place(State& state) {
  state.in_place.assign(state.tensors.size(), false);
  for (size_t i = state.graph.nodes.size(); i-- > 0;) {
    const Node& node = state.graph.nodes[i];
    if (node.op != OpKind::kIndexStore) continue;
    const int out = node.outputs[0], dst = node.inputs[0];
    const bool whole_input = state.is_input(dst) && state.owner(dst) == dst;
    if (!whole_input || state.tensor(out).output) continue;
    if (ends_in_copy(state, out, dst) && !has_other_readers(state, dst, static_cast<int>(i), dst)) {
      state.in_place[static_cast<size_t>(out)] = true;
    }
  }
}

}  // namespace ark::planner
