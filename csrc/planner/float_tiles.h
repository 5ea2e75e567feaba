// Tiles of fp32 products (kMatmulFloat) and the time that they take.
#pragma once
#include <cstdint>

#include "device/abi.h"

namespace ark::planner {

/// 64 or 128 each; an operand's block in memory and in a page is 64 of its rows by 32 k.
struct FloatTile {
  int rows, columns;
};
inline constexpr int kFloatBlock = 64, kFloatTileK = 32;

double float_tile_seconds(const FloatTile& tile, int64_t k);

/// The tiles that so many workers, all idle, have done first.
FloatTile float_tile(const abi::MatmulTileParams& p, int num_workers);

}  // namespace ark::planner
