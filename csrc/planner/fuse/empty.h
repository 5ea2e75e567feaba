// What cannot be planned for sizes of 0, because ATen has no value for it.
#pragma once
#include "ir/graph.h"

namespace ark::planner {

/// Throws NodeUnsupported where something that is needed is the largest or smallest of no elements, and for attention
/// of no heads. What only values without elements are computed from is not needed.
void check_empty(const ir::Graph& bound_graph);

}  // namespace ark::planner
