// Strips of few-row products whose weights lie [k][n] (device/matmul/few_rows_columns.cuh): the tensor maps
// through which they come.
#pragma once
#include "planner/draft.h"
#include "planner/options.h"

namespace ark::planner {

/// Of a few-row product; nothing where its weights lie [n][k].
void set_column_strips(Draft& draft, FusedOp& op, const Options& options);

}  // namespace ark::planner
