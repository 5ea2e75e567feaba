// Products of what ranks have gathered: the own rank's rows are read where they come from, not through a box.
#pragma once
#include "planner/fuse/fused.h"

namespace ark::planner {

/// Of a product that has just been split by boxes (tile/split_by_boxes.h): gives it an operand for its own rows, if
/// what this rank sends is a tensor that stays as it is until the product has read it.
void read_own_rows(FusedGraph& graph, size_t op);

}  // namespace ark::planner
