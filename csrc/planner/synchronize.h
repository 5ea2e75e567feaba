// Pass 4: waits and arrivals. From the dependences between ops and the footprints of their tiles, derives counters as
// fine as the affine maps of abi.h can express, drops waits that others imply, and sets targets. At most kMaxWaits
// waits and kMaxArrivals arrivals per op.
#pragma once
#include "planner/draft.h"
#include "planner/planner.h"

namespace ark::planner {

void synchronize(Draft& draft, const Options& options);

}  // namespace ark::planner
