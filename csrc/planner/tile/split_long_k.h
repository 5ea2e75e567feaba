// Part of tile: a matmul with few tiles and a long k (128 tokens against a 2048 x 8192 weight: 16 tiles)
// becomes two ops. The first is a batch of products over parts of k and stores fp32 parts; the second adds the parts in
// order and runs the epilogue.
#pragma once
#include "planner/draft.h"
#include "planner/options.h"

namespace ark::planner {

/// Replaces such ops in draft.graph and renumbers FusedOp::after. No grid may be set yet.
void split_long_k(Draft& draft, const Options& options);

}  // namespace ark::planner
