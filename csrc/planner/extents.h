// How long an axis of an op is, and how its tiles cut it (plan/kinds.h). Program tasks walk a flattened domain and have
// no axes; of few-row products the grid alone has one.
#pragma once
#include <cstdint>

#include "plan/kinds.h"
#include "plan/plan.h"

namespace ark::planner {

struct Extent {
  int64_t size = 1;
  int64_t block = 1;                          // indices per tile, where the grid has this axis
  plan::Axis follows = plan::Axis::kNone;     // where it has not: the axis whose coordinate cuts this one as well,
  int64_t follow_block = 1;                   // so many indices per step of it,
  int64_t repeat = 1;                         // and so many steps that share an index (query heads of a kv head)
  plan::Axis or_follows = plan::Axis::kNone;  // the same where the grid has this axis instead
  int64_t or_repeat = 1;
};
Extent extent_of(const abi::OpRecord& record, plan::Axis axis);

/// One dimension of an operand: how the grid's coordinates cut it.
struct Cut {
  int64_t size = 1;
  int coordinate = -1;  // that cuts it; -1: every tile sees all of it
  int64_t block = 1;    // indices per step of the coordinate
  int64_t repeat = 1;   // steps that share an index
};
Cut cut_of(const abi::OpRecord& record, plan::Axis axis);

/// The axes of an operand: of its role, or of the grid where it belongs to an epilogue. Ends with kNone.
const plan::Axis* axes_of(const abi::OpRecord& record, int operand);

/// Tiles along each coordinate of the grid, from parameters and tile sizes.
struct Grid {
  int64_t tiles[3];
};
Grid grid_of(const abi::OpRecord& record);

}  // namespace ark::planner
