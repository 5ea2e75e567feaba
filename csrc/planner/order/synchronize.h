// Pass: waits and arrivals. From the dependences between ops and the footprints of their tiles, derives counters as
// fine as the affine maps of abi.h can express, drops waits that others imply, and sets targets. At most kMaxWaits
// waits and kMaxArrivals arrivals per op; an op that needs more waits gets empty ops before it that gather them.
//
// A wait is implied when every tile that it is for waits for other tiles that have waited for the same counters
// themselves, directly or through others: release and acquire are transitive. The order of a worker's list implies
// nothing.
#pragma once
#include "planner/draft.h"
#include "planner/options.h"
#include "planner/order/sync.h"

namespace ark::planner {

Sync synchronize(Draft& draft, const Options& options);

/// Makes every tile of `op` wait for all of `before`; false when the record of either is full.
bool add_full_wait(Draft& draft, Sync& sync, int op, int before);

}  // namespace ark::planner
