// Part of tile: which products on the tensor cores get small tiles (64 x 64, device/matmul/tile.cuh). Decided once,
// before products are split along k and before the others get their columns; both passes find the choice in the record.
#pragma once
#include "planner/draft.h"
#include "planner/options.h"

namespace ark::planner {

/// Sets tile_m, tile_n and tile_k of the products that get small tiles. No other tile may be set yet.
void choose_small_tiles(Draft& draft, const Options& options);

}  // namespace ark::planner
