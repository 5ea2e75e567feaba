// Empty ops of a plan that is made to be proved: where an op needs more waits than a record has room for, it waits for
// one that waits for all.
#pragma once
#include <span>
#include <string>

#include "plan/plan.h"

namespace ark::planner {

/// The first of so many counters that are new.
int64_t new_counters(plan::Plan& plan, int32_t count);
/// Tile t of an op waits for counter + t; a single counter: all tiles do.
abi::Wait wait_for_counters(int64_t counter, int32_t count, uint32_t target);
/// Appends ops of so many tiles; tile t waits for counter t of all waits, then arrives on a counter of its own. Returns
/// the first of these. The plan's last program must be empty.
int64_t add_joins(plan::Plan& plan, const std::string& name, int32_t tiles, std::span<const abi::Wait> waits);

}  // namespace ark::planner
