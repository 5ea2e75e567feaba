// Pass: waits and arrivals. From the dependences between ops and the footprints of their tiles, derives counters as
// fine as the affine maps of abi.h can express, drops waits that others imply, and sets targets. At most kMaxWaits
// waits and kMaxArrivals arrivals per op; an op that needs more waits gets empty ops before it that gather them.
//
// A wait is implied when every tile that it is for waits for other tiles that have waited for the same counters
// themselves, directly or through others: release and acquire are transitive. The order of a worker's list implies
// nothing.
#pragma once
#include <vector>

#include "planner/draft.h"
#include "planner/options.h"
#include "planner/order/counters.h"
#include "planner/order/op_set.h"

namespace ark::planner {

/// Where a wait of an op record comes from.
struct WaitSource {
  int before = -1;        // the op whose counters it reads
  bool full = false;      // every tile waits for all tiles of `before`
  bool some = false;      // every tile waits for at least one tile of `before`
  bool together = false;  // between them, the tiles wait for all tiles of `before`
};

/// What `synchronize` knows and the passes after it need.
struct Sync {
  std::vector<std::vector<WaitSource>> sources;  // per op, parallel to its record's waits
  std::vector<int> whole_counter;                // per op: its counter that all tiles arrive on, or -1
};

/// What is finished when. Filled in op order.
struct Finished {
  std::vector<OpSet> before;  // per op: ops that are finished before any tile of it starts
  std::vector<OpSet> after;   // per op: ops that are finished once all tiles of it are; itself among them

  explicit Finished(int num_ops) : before(num_ops, OpSet(num_ops)), after(num_ops, OpSet(num_ops)) {}
  /// Derives both sets of `op` from its waits and the sets of earlier ops.
  void derive(int op, const std::vector<WaitSource>& sources);
};

Sync synchronize(Draft& draft, const Options& options);

/// Makes every tile of `op` wait for all of `before`; false when the record of either is full.
bool add_full_wait(Draft& draft, Sync& sync, int op, int before);

}  // namespace ark::planner
