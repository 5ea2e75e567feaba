#include "planner/verify/verify_plan.h"

#include "planner/verify/checks.h"
#include "planner/verify/ranks.h"
#include "planner/verify/regions.h"

namespace ark::planner {
namespace {

/// Where the proof of all ranks together takes some milliseconds (docs/ARCHITECTURE.md).
bool few_for_all_ranks(const plan::Plan& plan) {
  constexpr int64_t kMost = 10'000;
  int64_t ranks = plan.world;
  for (const plan::RankGroup& group : plan.more_groups) ranks += group.world;
  return ranks * (static_cast<int64_t>(plan.ops.size()) + plan.num_counters) <= kMost;
}

}  // namespace

VerifyReport verify_plan(const plan::Plan& plan, VerifyLevel level) {
  VerifyReport report;
  if (level != VerifyLevel::kRaces) {
    verify_structure(plan);
    verify_background(plan);
    verify_exchanges(plan);
    verify_own_rows(plan);
    verify_early(plan);
    verify_counters(plan);
    verify_loop(plan);
  }
  for (const plan::Op& op : plan.ops) report.tiles += tiles_of(op.record);
  if (level == VerifyLevel::kStructure) return report;
  verify_memory(plan, report);
  verify_flag_words(plan, report);
  if (level == VerifyLevel::kFull || few_for_all_ranks(plan)) verify_ranks(plan, report);
  return report;
}

}  // namespace ark::planner
