#include "planner/verify_plan.h"

#include "planner/regions.h"
#include "planner/verify_checks.h"

namespace ark::planner {

VerifyReport verify_plan(const plan::Plan& plan, VerifyLevel level) {
  VerifyReport report;
  if (level != VerifyLevel::kRaces) {
    verify_structure(plan);
    verify_counters(plan);
  }
  for (const plan::Op& op : plan.ops) report.tiles += tiles_of(op.record);
  if (level != VerifyLevel::kStructure) verify_memory(plan, report);
  return report;
}

}  // namespace ark::planner
