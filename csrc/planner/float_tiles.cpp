#include "planner/float_tiles.h"

#include <limits>

namespace ark::planner {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// First loads and the report; then the epilogue of 64 x 64 sums.
constexpr double kTileSeconds = 2e-6, kEpilogueSeconds = 0.5e-6;

int64_t blocks_of(const FloatTile& tile) { return int64_t{tile.rows / kFloatBlock} * (tile.columns / kFloatBlock); }

}  // namespace

double float_tile_seconds(const FloatTile& tile, int64_t k) {
  const auto blocks = static_cast<double>(blocks_of(tile));
  const auto steps = static_cast<double>(ceil_div(k, kFloatTileK));
  return kTileSeconds + blocks * kEpilogueSeconds + steps * float_step_seconds(blocks);
}

FloatTile float_tile(const abi::MatmulTileParams& p, int num_workers) {
  constexpr FloatTile kTiles[] = {{128, 128}, {128, 64}, {64, 128}, {64, 64}};
  FloatTile best = kTiles[0];
  double best_seconds = std::numeric_limits<double>::infinity();
  for (const FloatTile& tile : kTiles) {
    const int64_t tiles = p.batch * ceil_div(p.m, tile.rows) * ceil_div(p.n, tile.columns);
    const double seconds = static_cast<double>(ceil_div(tiles, num_workers)) * float_tile_seconds(tile, p.k);
    if (seconds < best_seconds) best = tile, best_seconds = seconds;
  }
  return best;
}

}  // namespace ark::planner
