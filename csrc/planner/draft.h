// A plan in the making: what the passes after `fuse` hand to each other. Every pass fills in its part.
#pragma once
#include <vector>

#include "planner/depend.h"
#include "planner/fuse/fused.h"

namespace ark::planner {

struct Draft {
  FusedGraph graph;  // ops in plan order once `order_ops` ran; operands' slots are StorageIds until place_memory
  std::vector<plan::TensorMap> maps;              // tile
  std::vector<std::vector<Dependence>> deps;      // order_ops: per op, in the new order
  std::vector<std::vector<abi::WorkItem>> lists;  // schedule: per worker, WorkItem::op set
  int num_counters = 0;                           // synchronize
};

using plan::num_tiles;

}  // namespace ark::planner
