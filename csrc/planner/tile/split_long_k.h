// Part of tile: a matmul with few tiles and a long k (128 tokens against a 2048 x 8192 weight: 16 tiles)
// becomes two ops. The first is a batch of products over parts of k and stores fp32 parts; the second adds the parts in
// order and runs the epilogue. A row op that reads the product first does so itself (join_sums.h).
#pragma once
#include "planner/draft.h"
#include "planner/k_steps.h"
#include "planner/options.h"

namespace ark::planner {

/// Of a product in tiles, small ones or not. One part: it is not split.
KParts k_parts(const FusedGraph& graph, size_t product, const Options& options, bool small);

/// Replaces such ops in draft.graph and renumbers FusedOp::after. No grid may be set yet.
void split_long_k(Draft& draft, const Options& options);

}  // namespace ark::planner
