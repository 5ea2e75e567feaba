// Part of tile: how many columns a tile of sums of columns has.
#pragma once
#include <cstdint>

#include "planner/fuse/fused.h"

namespace ark::planner {

/// Columns that a tile should have. 32 of them still are whole 64- or 128-byte lines; more when there are enough
/// columns, or other ops beside, and where a tile would be over before its own cost is earned.
/// `beside`: what stands beside the op (beside.h). num_rows and row_size are known.
int64_t column_width(const FusedOp& op, int64_t workers, double beside);

}  // namespace ark::planner
