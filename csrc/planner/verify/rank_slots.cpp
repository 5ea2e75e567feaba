#include "planner/verify/rank_slots.h"

#include <map>

#include "planner/verify/checks.h"

namespace ark::planner {
namespace {

using plan::Buffer;
using plan::BufferKind;
using plan::Plan;

/// The first run that has the same memory for a buffer: constants are the same everywhere, a rank's inputs and its arena
/// stay, its outputs are new in every launch.
Run owner_of(const Buffer& b, Run run, const RankRules& rules) {
  switch (b.kind) {
    case BufferKind::kConstant:
      return {0, 0};
    case BufferKind::kOutput:
      return run;
    case BufferKind::kBox:
    case BufferKind::kBoxes:
      return {run.rank, run.launch % rules.box_sets};
    default:
      return {run.rank, 0};
  }
}

std::string name_of(const Buffer& b, size_t slot, Run owner) {
  std::string name = cat("slot ", slot, " of rank ", owner.rank);
  if (b.kind == BufferKind::kBox) name += cat(", box from rank ", b.index, ", set ", owner.launch);
  if (b.kind == BufferKind::kBoxes) name += cat(", boxes from all ranks, set ", owner.launch);
  return b.name.empty() ? name : cat(name, ", ", b.name);
}

}  // namespace

std::vector<std::vector<uint32_t>> place_ranks(const Plan& plan, const RankRules& rules, Plan& merged) {
  std::vector<Run> runs;
  for (int rank = 0; rank < plan.world; ++rank)
    for (int launch = 0; launch < rules.launches; ++launch) runs.push_back({rank, launch});
  std::vector<std::vector<uint32_t>> slots(runs.size(), std::vector<uint32_t>(plan.buffers.size()));
  std::map<std::pair<ExchangeKey, int32_t>, size_t> boxes;  // by exchange and rank that sends
  for (size_t slot = 0; slot < plan.buffers.size(); ++slot) {
    const Buffer& b = plan.buffers[slot];
    if (b.kind == BufferKind::kBoxOut) continue;
    if (b.kind == BufferKind::kBox) boxes[{exchange_of(b), b.index}] = slot;
    for (size_t i = 0; i < runs.size(); ++i) {
      const Run owner = owner_of(b, runs[i], rules);
      slots[i][slot] = slots[number_of(owner, rules)][slot];
      if (number_of(owner, rules) != i) continue;
      slots[i][slot] = static_cast<uint32_t>(merged.buffers.size());
      Buffer& own = merged.buffers.emplace_back();
      own.kind = b.kind, own.size_bytes = b.size_bytes, own.immutable = b.immutable;
      own.arena_offset = b.arena_offset + (b.kind == BufferKind::kArena ? plan.arena_bytes * owner.rank : 0);
      if (is_read_box(b.kind))
        own.arena_offset += plan.box_bytes * static_cast<int64_t>(owner.rank * rules.box_sets + owner.launch);
      own.name = name_of(b, slot, owner);
    }
  }
  for (size_t slot = 0; slot < plan.buffers.size(); ++slot) {
    const Buffer& b = plan.buffers[slot];
    for (size_t i = 0; i < runs.size() && b.kind == BufferKind::kBoxOut; ++i)
      slots[i][slot] = slots[number_of({b.index, runs[i].launch}, rules)][boxes.at({exchange_of(b), runs[i].rank})];
  }
  merged.arena_bytes = plan.arena_bytes * plan.world;
  return slots;
}

}  // namespace ark::planner
