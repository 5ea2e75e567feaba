// Bound graph -> plan. The passes, in order; each is a free function in a file of its own, with its contract in its
// header.
#pragma once
#include "ir/graph.h"
#include "plan/plan.h"
#include "planner/options.h"
#include "planner/stages.h"

namespace ark::planner {

/// Throws UnsupportedError (NodeUnsupported: with the node) for what no task kind can run. `stages` hears of each
/// stage; may be null.
plan::Plan make_plan(ir::Graph bound_graph, const Options& options, Stages* stages = nullptr);

/// Everything after `fuse` (fused.h): tile, share_programs, early_reads, order_ops, synchronize, schedule,
/// place_memory, flag_words, number_forms, verify_plan.
struct FusedGraph;
plan::Plan plan_fused(FusedGraph&& fused, const Options& options);

}  // namespace ark::planner
