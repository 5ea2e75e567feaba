// Part of tile: long rows beside products of few rows, a worker each.
#pragma once
#include "planner/fuse/fused.h"

namespace ark::planner {

/// Marks row ops (FusedOp::spread_rows) of a graph with few-row products or small tiles.
void spread_rows(FusedGraph& graph);

}  // namespace ark::planner
