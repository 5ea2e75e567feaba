#include "planner/place_memory.h"

#include <algorithm>

#include "base/check.h"

namespace ark::planner {
namespace {

struct Lifetime {
  int first = -1, last = -1;
};

std::vector<Lifetime> lifetimes(const FusedGraph& graph) {
  std::vector<Lifetime> result(graph.storages.size());
  for (int i = 0; i < static_cast<int>(graph.ops.size()); ++i) {
    const FusedOp& op = graph.ops[i];
    for (size_t x = 0; x < op.access.size(); ++x) {
      if (op.access[x] == Access::kParameters || op.op.operands[x].slot == abi::kNoSlot) continue;
      Lifetime& life = result[op.op.operands[x].slot];
      if (life.first < 0) life.first = i;
      life.last = i;
    }
  }
  return result;
}

}  // namespace

void place_memory(Draft& draft, const Options& options, plan::Plan& plan) {
  (void)options;
  FusedGraph& graph = draft.graph;
  const std::vector<Lifetime> life = lifetimes(graph);
  std::vector<int32_t> fresh_of(graph.storages.size(), -1), slot_of(graph.storages.size(), -1);
  for (size_t f = 0; f < graph.fresh_storage.size(); ++f) fresh_of[graph.fresh_storage[f]] = static_cast<int32_t>(f);
  for (size_t s = 0; s < graph.storages.size(); ++s) {
    const Storage& storage = graph.storages[s];
    plan::Buffer buffer;
    buffer.name = storage.name;
    buffer.size_bytes = storage.num_elements * size_bytes(storage.dtype);
    buffer.immutable = storage.immutable;
    buffer.first_op = life[s].first;
    buffer.last_op = life[s].last;
    if (storage.input >= 0) {
      buffer.kind = plan::BufferKind::kInput;
      buffer.index = storage.input;
    } else if (fresh_of[s] >= 0) {
      buffer.kind = plan::BufferKind::kOutput;
      buffer.index = fresh_of[s];
    } else if (life[s].first < 0) {
      continue;  // nobody touches it
    } else {
      buffer.kind = plan::BufferKind::kArena;
      buffer.arena_offset = plan.arena_bytes;
      plan.arena_bytes += (buffer.size_bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
    }
    slot_of[s] = static_cast<int32_t>(plan.buffers.size());
    plan.buffers.push_back(std::move(buffer));
  }
  for (FusedOp& op : graph.ops) {
    for (size_t x = 0; x < op.access.size(); ++x) {
      uint32_t& slot = op.op.operands[x].slot;
      if (op.access[x] == Access::kParameters || slot == abi::kNoSlot) continue;
      slot = static_cast<uint32_t>(slot_of[slot]);
    }
  }
  for (plan::TensorMap& map : draft.maps) map.slot = static_cast<uint32_t>(slot_of[map.slot]);
}

}  // namespace ark::planner
