// Pass 3: the order of ops and the work list of every worker. Afterwards graph.ops is in plan order (FusedOp::after
// renumbered) and every tile is in exactly one item; every list is in op order.
#pragma once
#include "planner/draft.h"
#include "planner/planner.h"

namespace ark::planner {

void schedule(Draft& draft, const Options& options);

}  // namespace ark::planner
