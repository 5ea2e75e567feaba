// Pass: the order of ops. Topological; of the ops that can run, the one with the longest path behind it comes first,
// but one whose inputs are only just being computed leaves the workers to others (weight gradients, casts) that fill
// them meanwhile.
#pragma once
#include "planner/draft.h"
#include "planner/options.h"

namespace ark::planner {

/// Permutes draft.graph.ops, renumbers FusedOp::after and fills in draft.deps. Grids must be set.
void order_ops(Draft& draft, const Options& options);

}  // namespace ark::planner
