// Part of tile: which products without small tiles get tiles of 128 x 256 and which of 128 x 128. Narrow tiles take
// more of the workers' time but balance better.
#pragma once
#include <vector>

#include "planner/draft.h"
#include "planner/options.h"

namespace ark::planner {

/// Products that nobody waits for, where little else is to be done: the order puts those with narrow tiles last, so
/// that they fill up the last wave. Their places in the graph, smallest first; none where waves do not matter.
std::vector<size_t> last_products(const FusedGraph& graph, int64_t workers);

/// Columns of a tile of every op; meant for the products on tensor cores among them.
std::vector<int> tile_columns(const FusedGraph& graph, const Options& options);

}  // namespace ark::planner
