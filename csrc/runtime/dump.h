// ARK_DUMP=folder: every stage of a compilation as text.
#pragma once
#include <string>

#include "ir/graph.h"
#include "planner/planner.h"
#include "runtime/compiled_graph.h"

namespace ark::runtime {

/// Writes graph.json, graph.txt, bound.txt, fused.txt, plan.txt, plan.json and (cuda) source.cu into
/// $ARK_DUMP/<graph name>[-<symbol>=<value>...]/; does nothing when ARK_DUMP is not set. A folder that cannot be
/// written costs a log line.
void dump(const ir::Graph& graph, const Instance& instance, const planner::Options& options);

}  // namespace ark::runtime
