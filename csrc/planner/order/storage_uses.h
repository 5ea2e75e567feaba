// Which ops touch a storage.
#pragma once
#include <vector>

#include "planner/fuse/fused.h"

namespace ark::planner {

struct StorageUse {
  std::vector<int> ops, writers;  // in plan order
};

/// Per storage; slots of operands must still be storages.
std::vector<StorageUse> uses_of(const FusedGraph& graph);

}  // namespace ark::planner
