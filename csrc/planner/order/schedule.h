// Pass: the work list of every worker. Op by op, tiles go to the worker that can start them first, in a simulation of
// the plan by the cost model; a few-row matmul's units go to all workers in contiguous ranges that balance the bytes.
//
// Every tile is in exactly one item and every list is in op order, so that the globally first unfinished tile can
// always run.
#pragma once
#include <vector>

#include "planner/draft.h"
#include "planner/options.h"

namespace ark::planner {

/// The simulation's times per op, seconds from the start of the launch.
struct Timeline {
  std::vector<double> start, finish;
  double end = 0;
};

/// Fills draft.lists from records with grids, waits and arrivals.
Timeline schedule(Draft& draft, const Options& options);

}  // namespace ark::planner
