// Tiles of fp32 products (kMatmulFloat) and the time that they take.
#pragma once
#include <cstdint>

#include "device/abi/abi.h"

namespace ark::planner {

/// 64 or 128 each; an operand's block in memory and in a page is 64 of its rows by 32 k.
struct FloatTile {
  int rows, columns;
};
inline constexpr int kFloatBlock = 64, kFloatTileK = 32;

/// A step of 32 k of so many blocks of 64 x 64 sums; measured 1.07, 1.72 and 3.10 us for one, two and four of them
/// (products of 4096^3). One block is 1024 cycles of 128 multiplications.
constexpr double float_step_seconds(double blocks) { return 0.38e-6 + blocks * 0.68e-6; }

double float_tile_seconds(const FloatTile& tile, int64_t k);

/// The tiles that so many workers, all idle, have done first.
FloatTile float_tile(const abi::MatmulTileParams& p, int num_workers);

}  // namespace ark::planner
