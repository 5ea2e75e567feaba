// What a launch that has failed says, and to whom: the host, other workers, other ranks, whoever reads its outputs.
#pragma once
#include "device/loop/border.cuh"
#include "device/wait/report.cuh"

namespace ark::device {

/// Ranks of all groups that have not heard yet that somebody gave up; one group's do not hear of another's.
ARK_DEVICE void tell_groups(const Worker& worker) {
  if constexpr (kGroups > 1)
    for (int g = 0; g < kGroups; ++g) {
      const abi::GroupLaunch& group = worker.shared.failure.group(g);
      for (int r = 0; r < group.world; ++r)
        if (r != group.rank && load_relaxed_system(&group.peers[r]->abort) == 0)
          store_relaxed_system(&group.peers[r]->abort, abi::abort_about(group.rank));
    }
}

/// The first worker that failed tells everybody: the other workers through the run's state, the host through its error
/// record.
ARK_DEVICE void report_failure(const Worker& worker, const abi::LoopLaunch& loop) {
  const Failure& f = worker.shared.failure;
  const abi::LaunchHeader& launch = worker.launch;
  const u32 who = abi::abort_about(launch.rank);
  if (f.first == 0 || atomic_set_first_system(&launch.state->abort, who) != 0) return;
  publish(launch.error, abi::kErrorDeadline, [&](abi::ErrorRecord& e) {
    e.rank = launch.rank;
    e.fault = f.fault;
    if constexpr (kLoop) e.iteration = static_cast<i32>(borders_passed(worker, loop));
  });
  if constexpr (kGroups > 1)
    tell_groups(worker);
  else
    for (int r = 0; kRanks > 1 && r < launch.world; ++r)
      if (r != launch.rank) store_relaxed_system(&launch.peers[r]->abort, who);
}

/// Tells the host that another rank gave up, where this one has nothing of its own to say.
ARK_DEVICE void tell_rank_error(const Worker& worker) {
  const abi::LaunchHeader& launch = worker.launch;
  if (*static_cast<volatile u32*>(&launch.error->set) != 0) return;
  publish(launch.error, abi::kErrorRank, [&](abi::ErrorRecord& e) {
    const abi::RunState* state = launch.state;
    if constexpr (kGroups > 1) {
      int group = 0;
      while (group + 1 < kGroups && load_relaxed_system(&state->abort) == 0)
        state = worker.shared.failure.group(++group).state;
      e.group = group;
    }
    e.rank = launch.rank;
    e.fault.seen = static_cast<u32>(abi::rank_of_abort(load_relaxed_system(&state->abort)));
  });
}

/// Some rank has given up, in any of the groups.
ARK_DEVICE bool any_gave_up(const Worker& worker) {
  if constexpr (kGroups > 1) return any_gave_up(worker.shared.failure);
  return load_relaxed_system(&worker.launch.state->abort) != 0;
}

/// One warp, after all other workers have left a failed launch.
ARK_DEVICE void poison_outputs(const abi::LaunchHeader& launch, const u64* slots) {
  for (int i = 0; i < launch.num_poison; ++i) {
    const abi::PoisonRange range = launch.poison[i];
    unsigned char* bytes = reinterpret_cast<unsigned char*>(slots[range.slot]);
    // Fresh tensors begin at multiples of 16 bytes at least.
    for (i64 k = threadIdx.x * 16; k + 16 <= range.size_bytes; k += 512)
      *reinterpret_cast<uint4*>(bytes + k) = make_uint4(~0u, ~0u, ~0u, ~0u);
    for (i64 k = range.size_bytes / 16 * 16 + threadIdx.x; k < range.size_bytes; k += 32) bytes[k] = 0xff;
  }
}

/// Tells the host of the first op that met an index out of range, unless it has to hear of something worse.
ARK_DEVICE void tell_index_error(const abi::LaunchHeader& launch, i32 op, u32 iteration) {
  store_relaxed(&launch.state->index_error, 0);
  if (*static_cast<volatile u32*>(&launch.error->set) != 0) return;
  const volatile abi::RunState* state = launch.state;  // written by other workers
  publish(launch.error, abi::kErrorIndex, [&](abi::ErrorRecord& e) {
    e.rank = launch.rank;
    e.fault.name.op = op;
    e.index_value = state->index_value;
    e.index_limit = state->index_limit;
    e.iteration = static_cast<i32>(iteration);
  });
}

}  // namespace ark::device
