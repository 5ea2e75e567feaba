// How wide the strips of few-row products are whose weights lie [k][n] (device/matmul/few_rows_columns.cuh).
#pragma once
#include "device/abi/abi.h"
#include "planner/options.h"

namespace ark::planner {

/// Of what memory gives, where lines of k are 16, 32, 64 or 128 bytes long.
double line_rate(const Costs& costs, int columns);
/// Columns of a strip and lane: wide ones read whole lines, narrow ones spread over more workers.
int strip_columns(const abi::MatmulRowsParams& params, const Machine& machine);

}  // namespace ark::planner
