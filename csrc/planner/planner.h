// Bound graph -> plan. The passes, in order; each is a free function in a file of its own, with its contract in its
// header.
#pragma once
#include "ir/graph.h"
#include "planner/plan.h"

namespace ark::planner {

/// What the planner may assume of the machine; measured numbers, see docs/PERFORMANCE.md.
struct Machine {
  int num_workers = 132;
  double read_bytes_per_second = 4.7e12;
  double tensor_flops = 790e12;
  double float_flops = 60e12;  // of fp32 products
  double simple_flops = 40e12;
};

enum class Schedule : uint8_t {
  kGreedy,
  kSequential
};  // kSequential: every op waits for all tiles of the one before it

struct Options {
  Machine machine;
  Schedule schedule = Schedule::kGreedy;
  bool tensor_cores = true;  // false: only the *Simple kinds (types and shapes permitting all)
  bool few_rows = true;      // false: products of few rows are done in tiles where types and shapes permit
  bool sizes_vary = false;   // the graph has symbols: numbers in programs that may be sizes go into the records
  bool reuse_memory = true;
  int max_slots = 3840;      // addresses that a launch can carry (device/launch.h)
  bool verify_races = true;  // verify_plan in full (0.03-0.3 s for whole models); false: structure and counters only
  bool verify = true;        // false: the plan as the passes made it, to look at
};

/// Throws UnsupportedError (with the node) for what no task kind can run.
plan::Plan make_plan(ir::Graph bound_graph, const Options& options);

/// Everything after `fuse` (fused.h): tile, schedule, synchronize, place_memory, verify.
struct FusedGraph;
plan::Plan plan_fused(FusedGraph&& fused, const Options& options);

}  // namespace ark::planner
