// Part of tile: two products of one activation, of which the second's epilogue reads what the first stores (gate and up
// of a gated feed-forward), as one product of two weights. The activation is read once, the first value need not be in
// memory, and nothing waits between them.
#pragma once
#include "planner/draft.h"
#include "planner/options.h"

namespace ark::planner {

/// Joins pairs of products with small tiles where that is sooner done, by their costs. After choose_small_tiles, before
/// products are split along k.
void join_gated(Draft& draft, const Options& options);

}  // namespace ark::planner
