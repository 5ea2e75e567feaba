// Vectors of row selects and row draws. Internal to planner/tile.
#pragma once
#include "planner/fuse/fused.h"

namespace ark::planner {

void tile_row_select(FusedOp& op);
void tile_row_draw(FusedOp& op);

}  // namespace ark::planner
