// Strips of few-row products whose weights lie [k][n] (device/matmul/few_rows_columns.cuh): how wide they are, and the
// tensor maps through which they come.
#pragma once
#include "planner/draft.h"
#include "planner/options.h"

namespace ark::planner {

/// Of what memory gives, where lines of k are 16, 32, 64 or 128 bytes long.
double line_rate(const Costs& costs, int columns);
/// Columns of a strip and lane: wide ones read whole lines, narrow ones spread over more workers.
int strip_columns(const abi::MatmulRowsParams& params, const Machine& machine);
/// Of a few-row product; nothing where its weights lie [n][k].
void set_column_strips(Draft& draft, FusedOp& op, const Options& options);

}  // namespace ark::planner
