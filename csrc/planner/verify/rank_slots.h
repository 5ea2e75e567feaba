// Which memory the ranks of a plan have in which launch: buffers of a merged plan (ranks.h), a slot for each memory.
#pragma once
#include <cstdint>
#include <vector>

#include "plan/plan.h"
#include "planner/verify/rank_rules.h"

namespace ark::planner {

/// A rank in a launch.
struct Run {
  int rank, launch;
};
inline size_t number_of(Run run, const RankRules& rules) {
  return static_cast<size_t>(run.rank * rules.launches + run.launch);
}

/// Appends the buffers of all ranks and launches to `merged`; per run, the slot there of each slot of the plan. An
/// out-box has the slot of what it is at the other rank: a box.
std::vector<std::vector<uint32_t>> place_ranks(const plan::Plan& plan, const RankRules& rules, plan::Plan& merged);

}  // namespace ark::planner
