// Part of tile: sums of rows by index. Every tile looks at all indices, which is no way to add many to many: sorting
// is.
#pragma once
#include "planner/draft.h"
#include "planner/options.h"

namespace ark::planner {

/// The tiles with which the worker that has most of them is done soonest. `beside`: alike_beside's.
void tile_scatter_sum(FusedOp& op, const Options& options, double beside = 1);

}  // namespace ark::planner
