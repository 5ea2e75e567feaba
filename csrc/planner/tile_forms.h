// Tiles of products on the tensor cores, and the time that they take.
#pragma once
#include <cstdint>

#include "device/abi/abi.h"
#include "planner/costs.h"

namespace ark::planner {

struct TileForm {
  int rows, columns, k;  // k of a step
};
inline constexpr TileForm kWideTile{128, 256, 64}, kNarrowTile{128, 128, 64};
inline constexpr TileForm kSmallTile{abi::kSmallTile, abi::kSmallTile, abi::kSmallTileK};

constexpr TileCosts tile_costs(const Costs& costs, const TileForm& form) {
  if (form.rows == kSmallTile.rows) return costs.small;
  const double share = form.columns == kWideTile.columns ? 1.0 : costs.narrow_share;
  return {share * costs.wide.block, share * costs.wide.own, share * costs.wide.instruction};
}

/// The form of a record that `tile` has been through.
constexpr const TileForm& tile_form(const abi::MatmulTileParams& p) {
  return p.tile_m == kSmallTile.rows ? kSmallTile : p.tile_n == kWideTile.columns ? kWideTile : kNarrowTile;
}

constexpr int64_t tiles_of(const abi::MatmulTileParams& p, const TileForm& form) {
  const int64_t rows = (p.m + form.rows - 1) / form.rows, columns = (p.n + form.columns - 1) / form.columns;
  return p.batch * rows * columns;
}
constexpr double tile_seconds(const Costs& costs, const TileForm& form, int64_t k, int instructions) {
  const TileCosts tile = tile_costs(costs, form);
  return static_cast<double>((k + 63) / 64) * tile.block + tile.own + instructions * tile.instruction;
}

/// Of a small tile of two weights: what bounds its steps are copies, of three pages where others have two.
constexpr double gated_tile_seconds(const Costs& costs, int64_t k, int instructions) {
  return tile_seconds(costs, kSmallTile, k + k / 2, instructions);
}

}  // namespace ark::planner
