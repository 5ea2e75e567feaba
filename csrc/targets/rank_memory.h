// What the ranks of a plan with exchanges share: a segment of memory of every rank, which all of them have mapped. Only
// stores to boxes and arrivals go to the segments of others; a rank reads, and waits, in its own.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/check.h"
#include "plan/plan.h"

namespace ark::targets {

/// The parts of an uneven exchange, by rank, in bytes from where a set of boxes begins: where what comes from it lies
/// in the own segment, and where what goes to it lies in its segment.
struct PartPlaces {
  std::vector<int64_t> in, out;
};

/// One rank's view of it. The ranks must run plans of one interface (planner/verify/rank_interface.h), and each as many
/// launches as the others, one at a time.
/// When a launch has failed on one rank, that launch or the next one fails on every rank (a peer may have finished it),
/// and so do all later ones: the memory has to be made anew. An index out of range is an error of its rank alone; on
/// cuda, where it is raised instead of the next launch, of all ranks.
struct RankMemory {
  std::vector<std::byte*> segments;     // by rank: rank_segment_bytes() of its plan, or more, aligned to 256; device
                                        // addresses on cuda. Zeroes before the first launch
  int rank = 0;                         // own
  int64_t part_bytes = 0;               // of all parts of uneven exchanges, behind the boxes; the same on all ranks
  std::map<int64_t, PartPlaces> parts;  // by the number of the exchange
  bool fresh = false;                   // cuda: no launch of this rank has been in this memory
  uint64_t deadline_ns = 0;             // longest time in which nothing moves (a peer may come late: it still compiles)
  /// Why nothing more will come from a rank ("has died"), or why this rank has to give up; empty: it may. May be null.
  std::function<std::string(int rank)> absence{};
  /// Hears why this rank gives up, before the others notice. May be null.
  std::function<void(const std::string& why)> give_up{};
  std::vector<RankMemory> more_groups{};  // of plan::Plan::more_groups. The own run state is that of group 0
};
inline const RankMemory& memory_of(const RankMemory& memory, int32_t group) {
  return group == 0 ? memory : memory.more_groups.at(static_cast<size_t>(group) - 1);
}

/// Of the boxes and parts of even launches, or of odd ones.
inline int64_t box_set_bytes(const plan::Plan& plan, int64_t part_bytes, int32_t group = 0) {
  return box_bytes_of(plan, group) + part_bytes;
}

// A segment: boxes of even launches, boxes of odd launches, run state and counters. Ranks may have different numbers of
// counters: what others touch, boxes and the counters of exchanges, lies before the rest. A segment of group 1, 2, ..
// begins its counters with the group's first one, and only the abort word of its run state is used.
/// `state_bytes`: of the plan's executable.
inline size_t rank_segment_bytes(const plan::Plan& plan, size_t state_bytes, int64_t part_bytes = 0,
                                 int32_t group = 0) {
  constexpr size_t kAlignment = 256;
  return (state_bytes + kAlignment - 1) / kAlignment * kAlignment +
         2 * static_cast<size_t>(box_set_bytes(plan, part_bytes, group));
}
inline std::byte* rank_state(const plan::Plan& plan, std::byte* segment, int64_t part_bytes = 0, int32_t group = 0) {
  return segment + 2 * static_cast<size_t>(box_set_bytes(plan, part_bytes, group));
}
/// The run state of this rank. Throws UserError where the memory is not there, or of another number of ranks.
inline std::byte* own_rank_state(const plan::Plan& plan, const RankMemory* memory) {
  check<UserError>(memory != nullptr, "plan '", plan.name, "' has exchanges: a launch needs the memory of ", plan.world,
                   " ranks");
  check<UserError>(memory->more_groups.size() == plan.more_groups.size(), "plan '", plan.name, "' of ",
                   num_groups(plan), " groups: launched with memory of ", memory->more_groups.size() + 1);
  for (int32_t group = 0; group < num_groups(plan); ++group) {
    const RankMemory& one = memory_of(*memory, group);
    const int world = static_cast<int>(one.segments.size());
    check<UserError>(world == world_of(plan, group) && one.rank >= 0 && one.rank < world, "plan '", plan.name, "' of ",
                     world_of(plan, group), " ranks: launched as rank ", one.rank, " of ", world);
  }
  return rank_state(plan, memory->segments[static_cast<size_t>(memory->rank)], memory->part_bytes);
}

/// The address of a box in the launch that begins at `epoch`. Launches take turns with two sets of boxes:
/// who writes a set again has heard, in the launch between, from every rank, which has then read what was there before.
inline void* box_address(const plan::Plan& plan, const plan::Buffer& box, const RankMemory& of_plan, uint32_t epoch) {
  const RankMemory& memory = memory_of(of_plan, box.group);
  const bool out = box.kind == plan::BufferKind::kBoxOut || box.kind == plan::BufferKind::kPartOut;
  std::byte* boxes = memory.segments[static_cast<size_t>(out ? box.index : memory.rank)] +
                     static_cast<size_t>(box_set_bytes(plan, memory.part_bytes, box.group)) * (epoch % 2);
  if (plan::is_part(box.kind)) {
    const auto found = memory.parts.find(box.arena_offset);
    check(found != memory.parts.end(), "plan '", plan.name, "': no places of the parts of exchange ", box.arena_offset);
    return boxes + (out ? found->second.out : found->second.in)[static_cast<size_t>(box.index)];
  }
  const int64_t ranks = out ? memory.rank - box.index : 0;  // from the twin's place to that of what this rank sends
  return boxes + box.arena_offset + ranks * plan::box_stride(box.size_bytes);
}

}  // namespace ark::targets
