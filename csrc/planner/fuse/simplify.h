// The graph before fusion: no aliases, no copies that change nothing, no equal nodes twice, no dead nodes, no
// multiplications by one; long reductions with few results are cut into two, so that every worker gets a share (fixed
// order, bitwise reproducible); a row select joins the maxima of parts itself (select_values.h).
#pragma once
#include "ir/graph.h"

namespace ark::planner {

ir::Graph simplify(ir::Graph bound_graph, int num_workers);

/// A pure copy: cast to the type that the input has.
bool is_copy(const ir::Graph& graph, const ir::Node& node);

}  // namespace ark::planner
