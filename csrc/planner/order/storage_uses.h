// Which ops touch a storage.
#pragma once
#include <vector>

#include "planner/fuse/fused.h"

namespace ark::planner {

struct Use {
  std::vector<int> ops, writers;  // in plan order
};

/// Per storage; slots of operands must still be storages.
std::vector<Use> uses_of(const FusedGraph& graph);

}  // namespace ark::planner
