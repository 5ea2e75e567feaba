#include "planner/verify/rank_slots.h"

#include <algorithm>
#include <array>
#include <map>

#include "planner/verify/checks.h"

namespace ark::planner {
namespace {

using plan::Buffer;
using plan::BufferKind;
using plan::Plan;

/// The first run that has the same memory for a buffer: constants are the same everywhere, a rank's inputs and its
/// arena stay, its outputs are new in every launch.
Run owner_of(const Buffer& b, Run run, const RankRules& rules) {
  switch (b.kind) {
    case BufferKind::kConstant:
      return {0, 0};
    case BufferKind::kOutput:
      return run;
    case BufferKind::kBox:
    case BufferKind::kBoxes:
    case BufferKind::kPart:
      return {run.rank, run.launch % rules.box_sets};
    case BufferKind::kInput:
    case BufferKind::kArena:
    case BufferKind::kBoxOut:
    case BufferKind::kPartOut:
      return {run.rank, 0};
  }
  throw InternalError(cat("a buffer of kind ", static_cast<int>(b.kind)));
}

std::string name_of(const Buffer& b, size_t slot, Run owner) {
  std::string name = cat("slot ", slot, " of rank ", owner.rank);
  if (b.kind == BufferKind::kBox) name += cat(", box from rank ", b.index, ", set ", owner.launch);
  if (b.kind == BufferKind::kPart) name += cat(", part from rank ", b.index, ", set ", owner.launch);
  if (b.kind == BufferKind::kBoxes) name += cat(", boxes from all ranks, set ", owner.launch);
  return b.name.empty() ? name : cat(name, ", ", b.name);
}

/// Ranks have parts of other sizes than this one's plan says. All that is proved is who waits for whom, for which a
/// part may be as large as the largest of its exchange.
class PartSizes {
 public:
  explicit PartSizes(const Plan& plan) : plan_(plan) {
    for (const Buffer& b : plan.buffers)
      if (plan::is_part(b.kind)) most_[b.arena_offset] = std::max(most_[b.arena_offset], b.size_bytes);
  }
  int64_t largest(const Buffer& b) const {
    return b.kind == BufferKind::kPart ? most_.at(b.arena_offset) : b.size_bytes;
  }

  /// What a rank stores for another lies where that one reads it, if it reads any.
  void place(const RankRules& rules, const std::vector<Run>& runs, std::vector<std::vector<uint32_t>>& slots,
             Plan& merged) const {
    std::map<std::pair<int64_t, int32_t>, size_t> in;  // by exchange and rank
    std::map<std::array<int64_t, 4>, uint32_t> unread;
    for (size_t slot = 0; slot < plan_.buffers.size(); ++slot)
      if (const Buffer& b = plan_.buffers[slot]; b.kind == BufferKind::kPart) in[{b.arena_offset, b.index}] = slot;
    for (size_t slot = 0; slot < plan_.buffers.size(); ++slot) {
      const Buffer& b = plan_.buffers[slot];
      for (size_t i = 0; i < runs.size() && b.kind == BufferKind::kPartOut; ++i) {
        const Run there{b.index, runs[i].launch};
        if (const auto read = in.find({b.arena_offset, runs[i].rank}); read != in.end()) {
          slots[i][slot] = slots[number_of(there, rules)][read->second];
          continue;
        }
        const std::array<int64_t, 4> key = {b.arena_offset, runs[i].rank, b.index, runs[i].launch % rules.box_sets};
        const auto [found, fresh] = unread.emplace(key, static_cast<uint32_t>(merged.buffers.size()));
        if (fresh) merged.buffers.push_back({.kind = BufferKind::kPart, .size_bytes = most_.at(b.arena_offset)});
        slots[i][slot] = found->second;
      }
    }
  }

 private:
  const Plan& plan_;
  std::map<int64_t, int64_t> most_;  // bytes, by exchange
};

}  // namespace

std::vector<std::vector<uint32_t>> place_ranks(const Plan& plan, const RankRules& rules, Plan& merged) {
  std::vector<Run> runs;
  for (int rank = 0; rank < plan.world; ++rank)
    for (int launch = 0; launch < rules.launches; ++launch) runs.push_back({rank, launch});
  std::vector<std::vector<uint32_t>> slots(runs.size(), std::vector<uint32_t>(plan.buffers.size()));
  std::map<std::pair<ExchangeKey, int32_t>, size_t> boxes;  // by exchange and rank that sends
  PartSizes parts(plan);
  for (size_t slot = 0; slot < plan.buffers.size(); ++slot) {
    const Buffer& b = plan.buffers[slot];
    if (b.kind == BufferKind::kBoxOut || b.kind == BufferKind::kPartOut) continue;
    if (b.kind == BufferKind::kBox) boxes[{exchange_of(b), b.index}] = slot;
    for (size_t i = 0; i < runs.size(); ++i) {
      const Run owner = owner_of(b, runs[i], rules);
      slots[i][slot] = slots[number_of(owner, rules)][slot];
      if (number_of(owner, rules) != i) continue;
      slots[i][slot] = static_cast<uint32_t>(merged.buffers.size());
      Buffer& own = merged.buffers.emplace_back();
      own.kind = b.kind, own.size_bytes = parts.largest(b), own.immutable = b.immutable;
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
  parts.place(rules, runs, slots, merged);
  merged.arena_bytes = plan.arena_bytes * plan.world;
  return slots;
}

}  // namespace ark::planner
