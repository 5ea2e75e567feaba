// The parts of verify_plan; each throws InternalError on the first thing that is wrong.
#pragma once
#include <string>

#include "base/check.h"
#include "planner/verify_plan.h"

namespace ark::planner {

/// Lists, records, buffers, flags. Afterwards every index in the plan may be used without a look.
void verify_structure(const plan::Plan& plan);
/// Targets, the order of waits, the end of the lists.
void verify_counters(const plan::Plan& plan);
/// Bounds and races; structure and counters must be right.
void verify_memory(const plan::Plan& plan, VerifyReport& report);

template <class... Args>
void require(const plan::Plan& plan, bool condition, const Args&... message) {
  if (!condition) [[unlikely]]
    throw InternalError(cat("plan ", plan.name, ": ", message...));
}
inline std::string describe(const plan::Plan& plan, int64_t op) {
  return cat("op ", op, " '", plan.ops[static_cast<size_t>(op)].name, "'");
}

}  // namespace ark::planner
