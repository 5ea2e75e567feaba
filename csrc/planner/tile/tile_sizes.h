// Part of tile: sizes of tiles that the passes before the grids reckon with.
#pragma once
#include "planner/fuse/fused.h"

namespace ark::planner {

inline constexpr int kMatmulTileM = 128, kMatmulTileK = 64;
inline constexpr int kSimpleTile = 64;
inline constexpr int kAttentionTile = 128;

/// Of a product that choose_small_tiles (small_tiles.h) has been through.
inline bool has_small_tiles(const FusedOp& op) {
  return op.op.record.kind == abi::TaskKind::kMatmulTile && op.op.record.params.matmul.tile_m == abi::kSmallTile;
}

}  // namespace ark::planner
