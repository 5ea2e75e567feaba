// Does a row of a prologue have a factor that its product can be multiplied by behind the sum over k
// (device/matmul/few_rows_factor.cuh)? What codegen/row_factor.h finds in the program, asked of the graph before there
// is one: what the prologue costs depends on it.
#pragma once
#include <vector>

#include "planner/fuse/prologue_cost.h"
#include "planner/fuse/state.h"

namespace ark::planner {

/// How the value [rows, k], made of `leaves`, depends on a reduction of its rows.
RowReduction row_reduction(const State& state, int value, const std::vector<int>& leaves);

}  // namespace ark::planner
