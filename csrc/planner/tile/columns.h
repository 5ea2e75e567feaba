// Part of tile: which products get tiles of 128 x 256 and which of 128 x 128. Narrow tiles take more of the workers'
// time but balance better.
#pragma once
#include <vector>

#include "planner/draft.h"
#include "planner/options.h"

namespace ark::planner {

/// Columns of a tile of every op; meant for the products on tensor cores among them.
std::vector<int> tile_columns(const FusedGraph& graph, const Options& options);

}  // namespace ark::planner
