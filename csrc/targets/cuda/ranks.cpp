#include "targets/cuda/ranks.h"

#include <bit>
#include <cstring>

#include "base/check.h"
#include "plan/as_run.h"

namespace ark::targets {

void add_ranks(abi::LaunchHeader& header, const plan::Plan& plan, const RankMemory& memory) {
  header.rank = memory.rank;
  header.world = plan.world;
  header.deadline_ns = memory.deadline_ns;
  header.box_bytes = box_set_bytes(plan, memory.part_bytes);
  for (size_t r = 0; r < memory.segments.size(); ++r)
    header.peers[r] = reinterpret_cast<abi::RunState*>(rank_state(plan, memory.segments[r], memory.part_bytes));
}

namespace {

abi::GroupLaunch group_launch(const plan::Plan& plan, const RankMemory& memory, int32_t group) {
  abi::GroupLaunch launch{};
  launch.rank = memory.rank;
  launch.world = world_of(plan, group);
  launch.box_bytes = box_set_bytes(plan, memory.part_bytes, group);
  for (size_t r = 0; r < memory.segments.size(); ++r)
    launch.peers[r] = reinterpret_cast<abi::RunState*>(rank_state(plan, memory.segments[r], memory.part_bytes, group));
  launch.state = launch.peers[memory.rank];
  return launch;
}

/// Where there are several.
std::string of_group(const plan::Plan& plan, int32_t group) {
  return plan.more_groups.empty() ? "" : cat(" of group '", group_at(plan, group).name, "'");
}

/// Of a wait for an exchange, `block` counters behind the first one of a rank.
uint32_t target_of(const abi::Wait& wait, int64_t block) {
  return block == (wait.limit - 1) / wait.div ? wait.last_target : wait.target;
}

}  // namespace

void add_groups(unsigned char* params, const abi::LaunchHeader& header, const plan::Plan& plan,
                const RankMemory* memory, int groups) {
  check(groups >= num_groups(plan), "plan '", plan.name, "' of ", num_groups(plan), " groups, in a kernel of ", groups);
  for (int32_t group = 0; group < groups; ++group) {
    abi::GroupLaunch launch{};
    launch.state = header.state;
    if (group < num_groups(plan)) launch = group_launch(plan, memory_of(*memory, group), group);
    std::memcpy(params + static_cast<size_t>(group) * sizeof launch, &launch, sizeof launch);
  }
}

void add_boxes(unsigned char* slots, const plan::Plan& plan, const RankMemory& memory) {
  for (size_t i = 0; i < plan.buffers.size(); ++i) {
    const plan::Buffer& buffer = plan.buffers[i];
    if (!plan::is_among_ranks(buffer.kind)) continue;
    void* address = box_address(plan, buffer, memory, 0);
    std::memcpy(slots + i * sizeof(abi::u64), &address, sizeof address);
  }
}

void give_up_all(const RankMemory& memory, const std::string& why) {
  if (memory.give_up) memory.give_up(why);
  for (const RankMemory& other : memory.more_groups) give_up_all(other, why);
}

std::string counter_text(const plan::Plan& plan, abi::i32 counter) {
  const auto run = static_cast<uint32_t>(counter);
  const uint32_t group = run >> abi::kCounterGroupShift;
  return cat("counter ", plan::planned_counter(plan, run),
             group == 0 ? "" : of_group(plan, static_cast<int32_t>(group)));
}

abi::u32 launches_before(abi::u32 expected, abi::u32 target) {
  if (target == 0) return 0;
  const int shift = std::countr_zero(target);
  const abi::u32 odd = target >> shift;
  abi::u32 inverse = odd;  // right in the last 3 bits; each step doubles them
  for (int step = 0; step < 4; ++step) inverse *= 2 - odd * inverse;
  return ((expected >> shift) * inverse << shift >> shift) - 1;
}

std::string describe_ranks(const plan::Plan& plan, const abi::ErrorRecord& e) {
  const std::string where = cat(" of '", plan.name, "' on rank ", e.rank, of_group(plan, 0), ": rank ");
  if (e.set == abi::kErrorRank)
    return cat("launch", where, e.fault.seen, of_group(plan, e.group),
               " has given up, in this launch or an earlier one. Outputs are not valid");
  const abi::WaitName& wanted = e.fault.name;
  if (wanted.op < 0 || static_cast<size_t>(wanted.op) >= plan.ops.size()) return "";
  const plan::Op& op = plan.ops[static_cast<size_t>(wanted.op)];
  if (wanted.counter < 0) return "";
  const int64_t counter = plan::planned_counter(plan, static_cast<uint32_t>(wanted.counter));
  for (int w = 0; w < op.record.num_waits; ++w) {
    const abi::Wait& wait = op.record.wait[w];
    if (wait.rank_stride == 0) continue;
    const int32_t group = group_of_counter(plan, wait.counter);
    const int64_t after = counter - int64_t{wait.counter};
    if (after < 0 || after >= int64_t{world_of(plan, group)} * wait.rank_stride) continue;
    const uint32_t number = launches_before(e.fault.expected, target_of(wait, after % wait.rank_stride));
    return cat("launch ", number, where, after / wait.rank_stride, of_group(plan, group),
               " has not sent in time what op ", wanted.op, " '", op.name, "', tile ", wanted.tile, ", worker ",
               e.worker, " waits for (counter ", counter, ": expected ", e.fault.expected, ", seen ", e.fault.seen,
               "). Outputs are not valid");
  }
  return "";
}

}  // namespace ark::targets
