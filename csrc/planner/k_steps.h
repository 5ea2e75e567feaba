// Parts of k of a product in tiles: what they are made of, how many there may be, what they save. Asked by who splits
// such a product (tile/split_long_k) and by who chooses between tiles and the family for few rows (fuse/matmul).
#pragma once
#include <cstdint>
#include <optional>

#include "planner/costs.h"

namespace ark::planner {

/// Parts of k that a product is split into, and what the split costs: writing and reading the parts, and the hop
/// between.
struct KParts {
  int count = 1;
  double seconds = 0;
};

/// What the parts of a product are made of.
struct KSteps {
  int tile, k;     // rows and columns of a tile, k of a step
  double seconds;  // of a step, when few others run
  int share;       // the tiles must be no more than one for so many workers
  double combine;  // what must be saved
  int parts;       // at most

  int64_t tiles(int64_t m, int64_t n) const { return (m + tile - 1) / tile * ((n + tile - 1) / tile); }
  /// The most parts, `most` at most, that all `tiles` have as many steps in and workers of their own; 1: none.
  int fitting(int64_t k, int64_t tiles, int most, int workers) const;
  /// By so many parts, where adding them takes `combine`; as it was where too little is saved.
  KParts split(int64_t k, int count, double combine) const;
};
/// Of a kind of tiles, small ones or not; none: they have no parts.
std::optional<KSteps> k_steps(abi::TaskKind kind, bool small, const Costs& costs);

}  // namespace ark::planner
