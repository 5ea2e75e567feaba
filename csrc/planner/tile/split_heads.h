// Attention's backward by keys where few kv heads serve many query heads: a tile has all query heads of a kv head,
// which may leave most workers idle. Here these heads are cut into parts, each a tile of its own, whose dk and dv a
// pointwise op adds in a fixed order. A part is rounded to the type of k, as eager rounds each query head's before it
// adds them.
#pragma once
#include "planner/draft.h"
#include "planner/options.h"

namespace ark::planner {

/// Where the longest tile takes longer than the machine for all of them. Before grids are set.
void split_heads(FusedGraph& graph, const Options& options);

}  // namespace ark::planner
