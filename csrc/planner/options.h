// What a planning depends on beside the graph.
#pragma once
#include <cstdint>

#include "planner/costs.h"

namespace ark::planner {

/// What the planner may assume of the machine; measured numbers, docs/notes.
struct Machine {
  int num_workers = 132;
  double read_bytes_per_second = 4.7e12;
  double tensor_flops = 790e12;
  double float_flops = 60e12;  // of fp32 products
  double simple_flops = 40e12;
  double link_bytes_per_second = 350e9;        // stores to other ranks, all workers together
  double worker_link_bytes_per_second = 18e9;  // of one worker, 16 bytes at a time: 15 to 25 measured
  /// Ops share workers with sends that take the link longer. A layer with eight of 72 us gained nothing
  /// (notes/collectives).
  double long_send_seconds = 100e-6;
  /// Copies that take the link longer go on in the background (not measured: a layer's 72 us gain by it).
  double background_send_seconds = 20e-6;
  Costs costs;
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
  bool share_tiles = true;   // columns and pointwise ops side by side may have fewer, larger tiles
  bool sizes_vary = false;   // the graph has symbols: numbers in programs that may be sizes go into the records
  bool reuse_memory = true;
  bool background = true;    // long copies to other ranks go on beside the workers' tiles; false: workers make them
  int max_slots = 3840;      // addresses that a launch can carry (device/abi/launch.h)
  bool verify_races = true;  // verify_plan in full (0.03-0.3 s for whole models); false: structure and counters only
  bool verify = true;        // false: the plan as the passes made it, to look at
};

/// for_each_cost, and the machine's rates by their names.
template <typename MachineT, typename Visit>
void for_each_number(MachineT& machine, const Visit& visit) {
  visit("read_bytes_per_second", machine.read_bytes_per_second);
  visit("tensor_flops", machine.tensor_flops), visit("float_flops", machine.float_flops);
  visit("simple_flops", machine.simple_flops);
  for_each_cost(machine.costs, visit);
}

}  // namespace ark::planner
