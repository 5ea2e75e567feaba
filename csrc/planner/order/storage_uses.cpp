#include "planner/order/storage_uses.h"

namespace ark::planner {

std::vector<StorageUse> uses_of(const FusedGraph& graph) {
  std::vector<StorageUse> uses(graph.storages.size());
  for (int i = 0; i < static_cast<int>(graph.ops.size()); ++i) {
    const FusedOp& op = graph.ops[i];
    for (size_t x = 0; x < op.access.size(); ++x) {
      if (op.access[x] == Access::kParameters || op.op.operands[x].slot == abi::kNoSlot) continue;
      StorageUse& use = uses[op.op.operands[x].slot];
      if (use.ops.empty() || use.ops.back() != i) use.ops.push_back(i);
      if (op.access[x] != Access::kRead && (use.writers.empty() || use.writers.back() != i)) use.writers.push_back(i);
    }
  }
  return uses;
}

}  // namespace ark::planner
