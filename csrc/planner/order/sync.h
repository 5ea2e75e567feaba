// What waits and arrivals imply, for the passes after `synchronize`.
#pragma once
#include <vector>

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

}  // namespace ark::planner
