// Tiles of fp32 products (kMatmulFloat) and the time that they take.
#pragma once
#include <cstdint>

#include "device/abi/abi.h"
#include "planner/options.h"

namespace ark::planner {

/// 64 or 128 each; an operand's block in memory and in a page is 64 of its rows by 32 k.
struct FloatTile {
  int rows, columns;
};
inline constexpr int kFloatBlock = 64, kFloatTileK = 32;

/// A step of 32 k of so many blocks of 64 x 64 sums.
constexpr double float_step_seconds(const Costs& costs, double blocks) {
  return costs.float_step + blocks * costs.float_block;
}

double float_tile_seconds(const Costs& costs, const FloatTile& tile, int64_t k);

/// The tiles that so many workers, all idle, have done first.
FloatTile float_tile(const abi::MatmulTileParams& p, const Machine& machine);

}  // namespace ark::planner
