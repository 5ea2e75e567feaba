#pragma once
#include "planner/fuse/fused.h"
#include "planner/options.h"

namespace ark::planner {

/// Decode attention of more heads (batches times kv heads) than workers: two tiles of an item at once, a warpgroup
/// each. A tile of a short cache is a chain of loads and barriers that leaves the worker idle, and a worker has
/// several; of a long cache it is bytes, and nothing is gained. Only of a cache with a position whose later rows are
/// bounded by causality or a mask's table of ranges: these rows are few then, and are staged by one warp. After
/// early_reads.
void pair_decode_tiles(FusedGraph& graph, const Options& options);

}  // namespace ark::planner
