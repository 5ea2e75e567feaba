// Part of tile: a column or row reduction with too few tiles for the workers becomes two ops. The first reduces parts
// of the range, the parts being a kept dimension of its domain, and stores them; the second reduces the parts in order
// and runs what follows the reduction. Deterministic: the same parts and the same order in every run.
#pragma once
#include "planner/draft.h"
#include "planner/options.h"

namespace ark::planner {

/// Replaces such ops in draft.graph and renumbers FusedOp::after. No grid may be set yet.
void split_reductions(Draft& draft, const Options& options);

}  // namespace ark::planner
