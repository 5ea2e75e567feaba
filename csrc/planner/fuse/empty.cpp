#include "planner/fuse/empty.h"

#include <algorithm>
#include <vector>

#include "base/check.h"

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

void check_node(const ir::Graph& graph, const Node& node) {
  const auto value = [&](size_t input) -> const ir::Value& {
    return graph.values[static_cast<size_t>(node.inputs[input])];
  };
  if (node.op == OpKind::kReduce) {
    check<UnsupportedError>(has_identity(node.attrs.reduce) || !is_empty(value(0)), "node '", node.name, "': ",
                            name(node.attrs.reduce), " of no elements");
  } else if (node.op == OpKind::kAttention || node.op == OpKind::kAttentionBackward) {
    const size_t k = node.op == OpKind::kAttention ? 1 : 2;
    check<UnsupportedError>(value(k).sizes[1].value > 0, "node '", node.name, "': attention of no heads");
  }
}

}  // namespace

void check_empty(const ir::Graph& graph) {
  if (std::ranges::none_of(graph.values, is_empty)) return;
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
    check_node(graph, *node);
    std::ranges::for_each(node->inputs, need);
  }
}

}  // namespace ark::planner
