// Row selects of `top - values`, where the top comes from maxima of parts of the rows: the select joins them by itself,
// takes the values, and leaves the distances behind (ir::OpKind::kRowSelect), so that no op stands between the maxima
// and its first round. Where lists hold what a count asks for, a select by mass of what it leaves is a cut of it. A
// select that is one op is left as it is.
#pragma once
#include "ir/graph.h"

namespace ark::planner {

void select_values(ir::Graph& graph, int num_workers);

}  // namespace ark::planner
