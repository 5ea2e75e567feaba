// Tiles of products on the tensor cores, and the time that they take.
#pragma once
#include <cstdint>

#include "device/abi/abi.h"

namespace ark::planner {

struct TileForm {
  int rows, columns, k;  // k of a step
  double block_seconds;  // of 64 k, where the other workers have tiles as well
  double own_seconds;    // of a tile besides: its sums' way through a plain epilogue
  double op_seconds;     // of each arithmetic instruction of an epilogue
};

/// Wide and narrow tiles: measured in a training step. Small ones: 250 cycles for 64 k, of a kernel that only computed
/// products, and an eighth of a wide tile's elements in their epilogue; neither is measured in a plan yet.
inline constexpr TileForm kWideTile{128, 256, 64, 0.67e-6, 4.2e-6, 0.9e-6};
inline constexpr double kNarrowShare = 0.64;  // of a wide tile's time: 0.61 to 0.66 measured
inline constexpr TileForm kNarrowTile{
    128, 128, 64, kNarrowShare * 0.67e-6, kNarrowShare * 4.2e-6, kNarrowShare * 0.9e-6};
inline constexpr TileForm kSmallTile{abi::kSmallTile, abi::kSmallTile, abi::kSmallTileK,
                                     0.15e-6,         4.2e-6 / 8,      0.9e-6 / 8};

/// The form of a record that `tile` has been through.
constexpr const TileForm& tile_form(const abi::MatmulTileParams& p) {
  return p.tile_m == kSmallTile.rows ? kSmallTile : p.tile_n == kWideTile.columns ? kWideTile : kNarrowTile;
}

constexpr int64_t tiles_of(const abi::MatmulTileParams& p, const TileForm& form) {
  const int64_t rows = (p.m + form.rows - 1) / form.rows, columns = (p.n + form.columns - 1) / form.columns;
  return p.batch * rows * columns;
}
constexpr double tile_seconds(const TileForm& form, int64_t k, int instructions) {
  return static_cast<double>((k + 63) / 64) * form.block_seconds + form.own_seconds + instructions * form.op_seconds;
}

}  // namespace ark::planner
