#include "planner/depend.h"

#include <map>
#include <set>

#include "base/check.h"
#include "planner/footprint.h"

namespace ark::planner {
namespace {

struct Touch {
  int op, operand;
};
struct History {
  std::vector<Touch> writers, readers;
};

/// An op that sends for an uneven exchange comes after those that store its parts, on every rank, and who reads what
/// has come waits for it.
class Parts {
 public:
  explicit Parts(const FusedGraph& graph) : graph_(graph) {}
  void add(int index, std::vector<Dependence>& dependences) {
    const FusedOp& op = graph_.ops[static_cast<size_t>(index)];
    std::set<int> before;
    for (size_t x = 0; x < op.access.size(); ++x) {
      if (op.access[x] == Access::kParameters || op.op.operands[x].slot == abi::kNoSlot) continue;
      const Storage& storage = graph_.storages[op.op.operands[x].slot];
      const bool writes = op.access[x] == Access::kWrite;
      if (storage.part >= 0 && writes) stored_[storage.part].insert(index);
      if (storage.part >= 0 && !writes) before.insert(sender_.at(storage.part));
      if (storage.exchange >= 0 && writes) {
        sender_[storage.exchange] = index;
        const std::set<int>& parts = stored_[storage.exchange];
        before.insert(parts.begin(), parts.end());
      }
    }
    for (int other : before)
      if (other != index) dependences.push_back({other, index, Hazard::kAfter});
  }

 private:
  const FusedGraph& graph_;
  std::map<int32_t, std::set<int>> stored_;  // per exchange: ops
  std::map<int32_t, int> sender_;
};

}  // namespace

std::vector<std::vector<Dependence>> dependences(const FusedGraph& graph) {
  std::vector<std::vector<Dependence>> result(graph.ops.size());
  std::vector<History> histories(graph.storages.size());
  Parts parts(graph);
  for (int i = 0; i < static_cast<int>(graph.ops.size()); ++i) {
    const FusedOp& op = graph.ops[i];
    check(op.access.size() == op.op.operands.size(), "op '", op.op.name, "': ", op.access.size(), " accesses for ",
          op.op.operands.size(), " operands");
    for (int before : op.after) {
      check(before < i, "op ", i, " '", op.op.name, "' comes after op ", before, ", which is not earlier");
      result[i].push_back({before, i, Hazard::kAfter});
    }
    if (graph.world > 1) parts.add(i, result[i]);
    auto add = [&](const std::vector<Touch>& touches, int operand, Hazard hazard) {
      const StorageId storage = static_cast<StorageId>(op.op.operands[operand].slot);
      for (const Touch& touch : touches) {
        if (touch.op == i) continue;
        if (disjoint(graph.ops[touch.op].op, touch.operand, op.op, operand, graph.programs, graph.storages[storage]))
          continue;
        result[i].push_back({touch.op, i, hazard, storage, touch.operand, operand});
      }
    };
    for (int x = 0; x < static_cast<int>(op.access.size()); ++x) {
      const uint32_t slot = op.op.operands[x].slot;
      if (op.access[x] == Access::kParameters || slot == abi::kNoSlot) continue;
      check(slot < graph.storages.size(), "op '", op.op.name, "' operand ", x, ": storage ", slot, " of ",
            graph.storages.size());
      History& history = histories[slot];
      if (op.access[x] != Access::kWrite) {
        if (!history.writers.empty()) add(history.writers, x, Hazard::kReadAfterWrite);
        if (!graph.storages[slot].immutable) history.readers.push_back({i, x});
      }
      if (op.access[x] != Access::kRead) {
        check(!graph.storages[slot].immutable, "op '", op.op.name, "' writes immutable storage ", slot, " '",
              graph.storages[slot].name, "'");
        add(history.writers, x, Hazard::kWriteAfterWrite);
        add(history.readers, x, Hazard::kWriteAfterRead);
      }
    }
    for (int x = 0; x < static_cast<int>(op.access.size()); ++x) {
      const uint32_t slot = op.op.operands[x].slot;
      if (op.access[x] == Access::kParameters || slot == abi::kNoSlot) continue;
      if (op.access[x] != Access::kRead) histories[slot].writers.push_back({i, x});
    }
  }
  return result;
}

std::vector<bool> read_ops(const FusedGraph& graph) {
  std::vector<bool> read(graph.storages.size(), false);
  for (const FusedOp& op : graph.ops) {
    for (size_t x = 0; x < op.access.size(); ++x) {
      const uint32_t slot = op.op.operands[x].slot;
      if (slot != abi::kNoSlot && op.access[x] != Access::kWrite) read[slot] = true;
    }
  }
  std::vector<bool> result;
  for (const FusedOp& op : graph.ops) {
    bool is = false;
    for (size_t x = 0; x < op.access.size(); ++x) {
      const uint32_t slot = op.op.operands[x].slot;
      if (slot != abi::kNoSlot && op.access[x] != Access::kRead) is = is || read[slot];
    }
    result.push_back(is);
  }
  return result;
}

std::vector<bool> awaited_ops(const FusedGraph& graph) {
  constexpr double kMuch = 16;  // times the op's own arithmetic
  double flops = 0;
  for (const FusedOp& op : graph.ops) flops += static_cast<double>(op.op.flops);
  std::vector<bool> awaited = read_ops(graph);
  for (size_t i = 0; i < awaited.size(); ++i)
    if (kMuch * static_cast<double>(graph.ops[i].op.flops) >= flops) awaited[i] = true;
  return awaited;
}

}  // namespace ark::planner
