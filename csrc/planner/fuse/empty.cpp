#include "planner/fuse/empty.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/unsupported.h"

namespace ark::planner {
namespace {

using ir::Node;
using ir::OpKind;
using ir::ValueId;

bool is_empty(const ir::Value& value) {
  return std::ranges::any_of(value.sizes, [](const ir::Size& size) { return size.value == 0; });
}

bool has_identity(ReduceOp reduce) {
  return reduce == ReduceOp::kSum || reduce == ReduceOp::kProd || reduce == ReduceOp::kAny || reduce == ReduceOp::kAll;
}

bool is_attention(const Node& node) { return node.op == OpKind::kAttention || node.op == OpKind::kAttentionBackward; }

/// The heads of q are divided by those of k.
void check_heads(const ir::Graph& graph, const Node& node) {
  const size_t q = node.op == OpKind::kAttention ? 0 : 1;
  const auto heads = [&](size_t input) { return graph.values[static_cast<size_t>(node.inputs[input])].sizes[1].value; };
  check_node(heads(q) > 0 && heads(q + 1) > 0, node.name, "node '", node.name, "': attention of ", heads(q), " heads, ",
             heads(q + 1), " kv heads");
}

void check_reduce(const ir::Graph& graph, const Node& node) {
  const bool empty = is_empty(graph.values[static_cast<size_t>(node.inputs[0])]);
  check_node(!empty || has_identity(node.attrs.reduce), node.name, "node '", node.name, "': ", name(node.attrs.reduce),
             " of no elements");
}

}  // namespace

void check_empty(const ir::Graph& graph) {
  if (std::ranges::none_of(graph.values, is_empty)) return;
  for (const Node& node : graph.nodes)
    if (is_attention(node)) check_heads(graph, node);
  std::vector<bool> needed(graph.values.size());
  const auto need = [&](ValueId id) {
    const ir::Value& value = graph.values[static_cast<size_t>(id)];
    if (is_empty(value)) return;
    needed[static_cast<size_t>(id)] = true;
    if (value.base >= 0) needed[static_cast<size_t>(value.base)] = true;
  };
  std::ranges::for_each(graph.outputs, need);
  for (auto node = graph.nodes.rbegin(); node != graph.nodes.rend(); ++node) {
    if (node->op == OpKind::kCopyTo) std::ranges::for_each(node->outputs, need);
    if (std::ranges::none_of(node->outputs, [&](ValueId id) { return needed[static_cast<size_t>(id)]; })) continue;
    if (node->op == OpKind::kReduce) check_reduce(graph, *node);
    std::ranges::for_each(node->inputs, need);
  }
}

}  // namespace ark::planner
