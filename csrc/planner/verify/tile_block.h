// Tiles of a grid by their coordinates.
#pragma once
#include <cstdint>

#include "plan/plan.h"

namespace ark::planner {

/// The tiles first[i] <= c[i] < first[i] + count[i] of a grid.
struct TileBlock {
  int64_t first[3], count[3];
  int64_t last(int i) const { return first[i] + count[i] - 1; }
  bool empty() const { return count[0] <= 0 || count[1] <= 0 || count[2] <= 0; }
};
inline TileBlock whole_grid(const abi::OpRecord& r) {
  return {{0, 0, 0}, {r.grid[abi::GridAxis::kOuter], r.grid[abi::GridAxis::kMiddle], r.grid[abi::GridAxis::kInner]}};
}
inline TileBlock block_of_tile(const abi::OpRecord& r, int64_t tile) {
  return {{tile / r.grid[abi::GridAxis::kInner] / r.grid[abi::GridAxis::kMiddle],
           tile / r.grid[abi::GridAxis::kInner] % r.grid[abi::GridAxis::kMiddle], tile % r.grid[abi::GridAxis::kInner]},
          {1, 1, 1}};
}
/// Tiles of an op.
inline int64_t tiles_of(const abi::OpRecord& record) { return plan::num_tiles(record); }

}  // namespace ark::planner
