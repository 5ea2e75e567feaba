// Plans with exchanges and the process groups that they name. A plan holds no group: it asks torch for the name at each
// launch, so a group that has been destroyed is an error, and one that has been made anew is the one that counts.
#pragma once
#include <functional>
#include <string>

#include "plan/plan.h"
#include "targets/rank_memory.h"

namespace ark::bindings {

/// A plan that is to be launched.
struct RankPlan {
  const plan::Plan& plan;
  const std::string& key;  // what this rank finds the plan's memory by
  size_t state_bytes;      // of its executable
  int device = -1;         // of CUDA, or the host
  void* stream = nullptr;  // cuda
  int32_t group = 0;       // of the plan's, whose memory it is
};

using PlanLaunch = std::function<void(const targets::RankMemory&)>;

/// Calls `launch` with the memory of the ranks of all its groups; needs no interpreter. Throws UserError where ranks
/// have different plans, DeviceError where a group is gone, has failed, or fails. What keeps this rank from a launch
/// that it has met its ranks for, its groups hear; not of an index out of range, which the launch has survived.
void run_with_ranks(const RankPlan& plan, const PlanLaunch& launch);

/// This rank does not run a plan that its peers may wait for: they raise, with `why`. Nothing if there is no such
/// group.
void fail_group(const std::string& group, const std::string& why);

}  // namespace ark::bindings
