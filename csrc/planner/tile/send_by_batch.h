// Products whose rows go to the ranks of a group, as a reduce-scatter's do: the rows of each rank become a batch of
// their own, and the product itself stores each batch in the box at its rank. No op is left that sends.
#pragma once
#include "planner/draft.h"
#include "planner/options.h"

namespace ark::planner {

/// Of products of many tiles whose result nothing but a send reads. Before grids are set.
void send_by_batch(FusedGraph& graph, const Options& options);

}  // namespace ark::planner
