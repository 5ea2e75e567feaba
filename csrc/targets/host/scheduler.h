// Multiplexes a plan's workers on a few threads. A worker walks its list in order; when a tile's counters are not ready
// the thread switches to another worker, in a seeded random order, so that runs with different seeds meet different
// interleavings.
//
// Memory order: a tile's stores happen before the release add on its counters, which a waiting tile reads with acquire;
// nothing else orders tiles, as on the device. There are no fences (ThreadSanitizer does not model them).
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "targets/host/program/scratch.h"
#include "targets/host/tasks/task.h"
#include "targets/rank_memory.h"
#include "targets/target.h"

namespace ark::targets::host {

/// Reused from launch to launch, by one launch at a time.
struct LaunchMemory {
  std::vector<Scratch> scratch;  // per thread
  uint64_t launch = 0;           // a number for every iteration of every launch
};

struct LaunchOptions {
  std::span<void* const> slots;
  abi::RunState* state = nullptr;
  abi::TraceRecord* trace = nullptr;  // items in the order of the workers' lists, of the last iteration; or null
  uint64_t seed = 0, deadline_ns = 0;
  int num_threads = 1;
  Iterations* iterations = nullptr;   // null: one
  const RankMemory* ranks = nullptr;  // plans with exchanges; the run state is then the own segment's
};

/// Runs one launch to its end. Throws DeviceError when nothing moved for deadline_ns, or what a task threw; the run
/// state is then as new (zero). Otherwise its epoch has advanced by the iterations that ran. `index_error` is left set
/// in the state when an index was out of range: in the last iteration, since none follows it. With ranks, who throws
/// makes all others throw, in this launch or at the start of their next one, and the state stays as it is.
void run_plan(const plan::Plan& plan, std::span<const std::unique_ptr<Task>> tasks, const Kernels& kernels,
              const LaunchOptions& options, LaunchMemory& memory);

}  // namespace ark::targets::host
