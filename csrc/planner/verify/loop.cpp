// Loops. Between two iterations is a border, which orders as the end of a launch does, so all that is proved of
// launches that follow each other holds for iterations: counters get in each what their waits expect, no tile races
// with another of its iteration, and no op before writes what is loaded early. What is left is that the border
// waits for all, and that an iteration stores what the next one reads.
#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "planner/verify/checks.h"
#include "planner/verify/uses.h"

namespace ark::planner {
namespace {

using plan::Plan;

void check_border(const Plan& plan) {
  const auto workers =
      std::count_if(plan.lists.begin(), plan.lists.end(), [](const auto& list) { return !list.empty(); });
  require(plan, plan.loop.arrivals == workers, "the border expects ", plan.loop.arrivals, " arrivals of ", workers,
          " workers with a list");
  require(plan, plan.world == 1, "a loop with exchanges between ", plan.world, " ranks");
}

void check_slot(const Plan& plan, int32_t slot, const char* what) {
  require(plan, slot >= 0 && slot < static_cast<int32_t>(plan.buffers.size()), what, " is slot ", slot, " of ",
          plan.buffers.size());
  const plan::Buffer& buffer = plan.buffers[static_cast<size_t>(slot)];
  require(plan, buffer.kind == plan::BufferKind::kInput, what, ", slot ", slot, " (", buffer.name, "), is no input");
}

bool writes(const plan::Op& op, const std::vector<OperandUse>& uses, int32_t slot) {
  for (size_t i = 0; i < uses.size(); ++i)
    if (uses[i].write && op.operands[i].slot == static_cast<uint32_t>(slot)) return true;
  return false;
}

/// The end of the bytes from `begin` on that an iteration stores for certain.
int64_t stored_end(const Plan& plan, int32_t slot, int64_t begin) {
  std::vector<std::pair<int64_t, int64_t>> stored;
  for (size_t i = 0; i < plan.ops.size(); ++i) {
    const std::vector<OperandUse> operands = read_uses(plan.ops[i], plan.programs);
    if (!writes(plan.ops[i], operands, slot)) continue;
    for (const Use& use : uses_of(plan, i, operands))
      if (use.slot == static_cast<uint32_t>(slot) && use.how.write && use.dense) stored.emplace_back(use.low, use.high);
  }
  std::sort(stored.begin(), stored.end());
  int64_t end = begin;
  for (const auto& [low, high] : stored)
    if (low <= end) end = std::max(end, high);
  return end;
}

/// The first byte that an iteration may store; -1: none.
int64_t first_written(const Plan& plan, int32_t slot) {
  int64_t first = -1;
  for (size_t i = 0; i < plan.ops.size(); ++i) {
    const std::vector<OperandUse> operands = read_uses(plan.ops[i], plan.programs);
    if (!writes(plan.ops[i], operands, slot)) continue;
    for (const Use& use : uses_of(plan, i, operands))
      if (use.slot == static_cast<uint32_t>(slot) && use.how.write)
        first = first < 0 ? use.low : std::min(first, use.low);
  }
  return first;
}

void check_stored(const Plan& plan, int32_t slot, const char* what) {
  const plan::Buffer& buffer = plan.buffers[static_cast<size_t>(slot)];
  const int64_t stored = stored_end(plan, slot, 0);
  require(plan, stored >= buffer.size_bytes, what, ", slot ", slot, " (", buffer.name, "), has ", buffer.size_bytes,
          " bytes, of which an iteration stores ", stored);
}

}  // namespace

void verify_loop(const Plan& plan) {
  const plan::Loop& loop = plan.loop;
  if (loop.carried.empty()) {
    require(plan, loop.go_slot < 0 && loop.arrivals == 0, "a stop flag in slot ", loop.go_slot, " and ", loop.arrivals,
            " arrivals at the border, but nothing is carried");
    return;
  }
  check_border(plan);
  std::set<int32_t> slots;
  for (int32_t slot : loop.carried) {
    check_slot(plan, slot, "a carried value");
    check_stored(plan, slot, "a carried value");
    require(plan, slots.insert(slot).second, "slot ", slot, " is carried twice");
  }
  if (loop.go_slot < 0) return;
  check_slot(plan, loop.go_slot, "the stop flag");
  const int64_t bytes = plan.buffers[static_cast<size_t>(loop.go_slot)].size_bytes;
  require(plan, bytes == 2 && slots.count(loop.go_slot) == 0, "the stop flag in slot ", loop.go_slot, " has ", bytes,
          " bytes, expected 2, apart from what is carried");
  const int64_t first = first_written(plan, loop.go_slot);
  require(plan, first == 1 && stored_end(plan, loop.go_slot, 1) == 2, "of the stop flag, slot ", loop.go_slot,
          ", bytes from ", first, " on are stored, expected byte 1 alone");
}

}  // namespace ark::planner
