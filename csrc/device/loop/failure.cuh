// What a launch that has failed says, and to whom: the host, other workers, other ranks, whoever reads its outputs.
#pragma once
#include "device/loop/border.cuh"

namespace ark::device {

/// The first worker that failed tells everybody: the other workers through the run's state, the host through its error
/// record.
ARK_DEVICE void report_failure(const Worker& worker, const abi::LoopLaunch& loop) {
  const Failure& f = worker.shared.failure;
  const u32 who = 1 + static_cast<u32>(worker.launch.rank);
  if (f.first == 0 || atomic_set_first_system(&worker.launch.state->abort, who) != 0) return;
  abi::ErrorRecord* e = worker.launch.error;
  e->rank = worker.launch.rank;
  e->worker = static_cast<i32>(blockIdx.x);
  e->op = f.name.op;
  e->tile = f.name.tile;
  e->counter = f.name.counter;
  e->expected = f.expected;
  e->seen = f.seen;
  if constexpr (kLoop) e->iteration = static_cast<i32>(load_relaxed(&loop.state->gate) >> 1);
  store_release_system(&e->set, abi::kErrorDeadline);
  for (int r = 0; kRanks > 1 && r < worker.launch.world; ++r)
    if (r != worker.launch.rank) store_relaxed_system(&worker.launch.peers[r]->abort, who);
}

/// Tells the host that another rank gave up, where this one has nothing of its own to say.
ARK_DEVICE void tell_rank_error(const abi::LaunchHeader& launch) {
  if (*static_cast<volatile u32*>(&launch.error->set) != 0) return;
  launch.error->rank = launch.rank;
  launch.error->worker = static_cast<i32>(blockIdx.x);
  launch.error->seen = load_relaxed_system(&launch.state->abort) - 1;
  store_release_system(&launch.error->set, abi::kErrorRank);
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
  launch.error->rank = launch.rank;
  launch.error->worker = static_cast<i32>(blockIdx.x);
  launch.error->op = op;
  launch.error->index_value = state->index_value;
  launch.error->index_limit = state->index_limit;
  launch.error->iteration = static_cast<i32>(iteration);
  store_release_system(&launch.error->set, abi::kErrorIndex);
}

}  // namespace ark::device
