#include "planner/float_tiles.h"

#include <limits>

namespace ark::planner {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t blocks_of(const FloatTile& tile) { return int64_t{tile.rows / kFloatBlock} * (tile.columns / kFloatBlock); }

}  // namespace

double float_tile_seconds(const Costs& costs, const FloatTile& tile, int64_t k) {
  const auto blocks = static_cast<double>(blocks_of(tile));
  const auto steps = static_cast<double>(ceil_div(k, kFloatTileK));
  return costs.float_tile + blocks * costs.float_epilogue + steps * float_step_seconds(costs, blocks);
}

FloatTile float_tile(const abi::MatmulTileParams& p, const Machine& machine) {
  constexpr FloatTile kTiles[] = {{128, 128}, {128, 64}, {64, 128}, {64, 64}};
  FloatTile best = kTiles[0];
  double best_seconds = std::numeric_limits<double>::infinity();
  for (const FloatTile& tile : kTiles) {
    const int64_t tiles = p.batch * ceil_div(p.m, tile.rows) * ceil_div(p.n, tile.columns);
    const double seconds =
        static_cast<double>(ceil_div(tiles, machine.num_workers)) * float_tile_seconds(machine.costs, tile, p.k);
    if (seconds < best_seconds) best = tile, best_seconds = seconds;
  }
  return best;
}

}  // namespace ark::planner
