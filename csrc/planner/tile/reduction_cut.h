// Part of split_reductions: how many parts a reduction is cut in, so that all workers have some of it. Parts are of one
// length; where no such length suits the number of elements (a prime), what is left behind them is a part of its own.
#pragma once
#include "planner/fuse/fused.h"
#include "planner/tile/split_places.h"

namespace ark::planner {

/// What else is to be done: whether others wait for the result, and what stands beside the op (alike_beside).
struct CutRoom {
  bool awaited;
  double beside;
  int64_t workers;
};

/// Of the outermost reduced dimension; one part: the op stays as it is.
RowCut reduction_cut(const FusedOp& op, const Program& program, const CutRoom& room);

}  // namespace ark::planner
