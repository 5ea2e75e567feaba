#include "planner/k_steps.h"

#include <algorithm>

#include "device/abi/abi.h"
#include "planner/float_tiles.h"
#include "planner/tile_forms.h"

namespace ark::planner {

std::optional<KSteps> k_steps(abi::TaskKind kind, bool small, const Costs& costs) {
  if (small) return KSteps{kSmallTile.rows, abi::kSmallTileBlock, costs.small.block, 4, costs.split_small, 4};
  // 32 KB of operands at a worker's share of what a CTA can read. Where a quarter of the machine is used, other work
  // rarely fills the rest; weight gradients use more.
  if (kind == abi::TaskKind::kMatmulTile)
    return KSteps{kNarrowTile.rows, kNarrowTile.k, costs.lone_block, 4, costs.split, 8};
  if (kind == abi::TaskKind::kMatmulFloat)
    return KSteps{kFloatBlock, kFloatTileK, float_step_seconds(costs, 1), 2, costs.split_float, 8};
  return std::nullopt;
}

int KSteps::fitting(int64_t of_k, int64_t tiles, int most, int workers) const {
  for (int count = std::min(parts, most); count > 1; --count)
    if (of_k % (int64_t{k} * count) == 0 && tiles * count <= workers) return count;
  return 1;
}

KParts KSteps::split(int64_t of_k, int count, double combined) const {
  const double saved = static_cast<double>(of_k / k) * seconds * (1.0 - 1.0 / count);
  return saved > combined ? KParts{count, combined} : KParts{};
}

}  // namespace ark::planner
