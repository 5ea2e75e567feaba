// A fused graph after planner::tile, and its ops by name.
#pragma once
#include <cstdlib>
#include <string>
#include <utility>

#include "planner/tile/tile.h"
#include "support/sample_graphs.h"

namespace ark::test {

inline planner::Draft tiled(Builder& builder, const planner::Options& options = {}) {
  planner::Draft draft;
  draft.graph = std::move(builder.graph);
  planner::tile(draft, options);
  return draft;
}

/// The op of that name.
inline const plan::Op& find(const planner::Draft& draft, const std::string& name) {
  for (const FusedOp& op : draft.graph.ops) {
    if (op.op.name == name) return op.op;
  }
  std::abort();
}

}  // namespace ark::test
