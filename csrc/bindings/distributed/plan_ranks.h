// Plans with exchanges and the process groups that they name. A plan holds no group: it asks torch for the name at each
// launch, so a group that has been destroyed is an error, and one that has been made anew is the one that counts.
#pragma once
#include <string>

#include "bindings/distributed/rank_plan.h"

namespace ark::bindings {

/// Calls `launch` with the memory of the ranks of all its groups; needs no interpreter. Throws UserError where ranks
/// have different plans, DeviceError where a group is gone, has failed, or fails. What keeps this rank from a launch
/// that it has met its ranks for, its groups hear; not of an index out of range, which the launch has survived.
void run_with_ranks(const RankPlan& plan, const PlanLaunch& launch);

/// This rank does not run a plan that its peers may wait for: they raise, with `why`. Nothing if there is no such
/// group.
void fail_group(const std::string& group, const std::string& why);

}  // namespace ark::bindings
