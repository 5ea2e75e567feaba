// Products of what ranks have gathered: the rows that a rank has sent become a batch of their own, so that a tile waits
// for its row block of its rank instead of for everything, and products run while the rest still comes. The own rank's
// rows come from where they are (own_rows.h).
#pragma once
#include "planner/draft.h"
#include "planner/options.h"

namespace ark::planner {

/// Of products of many tiles whose first operand is all boxes of an exchange. Before grids are set.
void split_by_boxes(FusedGraph& graph, const Options& options);

}  // namespace ark::planner
