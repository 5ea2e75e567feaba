#include "planner/tile/small_tiles.h"

#include <algorithm>

#include "planner/tile/align_operands.h"
#include "planner/tile/columns.h"
#include "planner/tile/split_long_k.h"
#include "planner/tile_forms.h"

namespace ark::planner {
namespace {

/// Whether small tiles can compute the product (abi.h).
bool fits(const FusedGraph& graph, const FusedOp& op) {
  if (op.op.record.kind != abi::TaskKind::kMatmulTile) return false;
  const abi::MatmulTileParams& p = op.op.record.params.matmul;
  return p.k > 0 && p.k % abi::kSmallTileBlock == 0 && (p.pair_distance == 0 || 32 % p.pair_distance == 0) &&
         !share_b(graph, op) && are_tma_addressable(graph, op);
}

/// When the workers, all idle, have done the product's tiles, in as many parts of k as it is split into.
double grid_seconds(const FusedOp& op, const TileForm& form, const KParts& parts, const Options& options) {
  const abi::MatmulTileParams& p = op.op.record.params.matmul;
  const int64_t workers = options.machine.num_workers;
  const int64_t waves = (tiles_of(p, form) * parts.count + workers - 1) / workers;
  return static_cast<double>(waves) * tile_seconds(options.machine.costs, form, p.k / parts.count, 0) + parts.seconds;
}

/// Seconds that a product of at most as many small tiles as workers is sooner done with them than with large ones.
double gain_of(const FusedGraph& graph, size_t product, const Options& options) {
  const FusedOp& op = graph.ops[product];
  if (!fits(graph, op) || tiles_of(op.op.record.params.matmul, kSmallTile) > options.machine.num_workers) return 0;
  const KParts large = k_parts(graph, product, options, false), small = k_parts(graph, product, options, true);
  double other = grid_seconds(op, kNarrowTile, large, options);
  if (large.count == 1) other = std::min(other, grid_seconds(op, kWideTile, large, options));
  return other - grid_seconds(op, kSmallTile, small, options);
}

/// Rounds of the workers over the large tiles of all products that `small` leaves.
double large_rounds(const FusedGraph& graph, const std::vector<bool>& small, int64_t workers) {
  int64_t tiles = 0;
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    const abi::OpRecord& r = graph.ops[i].op.record;
    if (r.kind == abi::TaskKind::kMatmulTile && !small[i]) tiles += tiles_of(r.params.matmul, kWideTile);
  }
  return static_cast<double>(tiles) / static_cast<double>(workers);
}

}  // namespace

void choose_small_tiles(Draft& draft, const Options& options) {
  FusedGraph& graph = draft.graph;
  const int64_t workers = options.machine.num_workers;
  // Small tiles take more of the workers' time: worth it where others wait, or where there is nothing else to do.
  std::vector<bool> waits = awaited_ops(graph);
  int64_t tiles = 0;
  const std::vector<size_t> last = last_products(graph, workers);
  for (size_t i : last) tiles += tiles_of(graph.ops[i].op.record.params.matmul, kSmallTile);
  for (size_t i : last) waits[i] = tiles <= workers;
  // Beside large tiles the code of both takes registers and instructions from these (docs/notes/training.md,
  // "Registers"). What ranks send they must cut alike, whatever else they compute: such a product is asked alone.
  constexpr double kBesideLarge = 0.5e-6;
  std::vector<bool> small(graph.ops.size());
  double gain = 0;
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    const double own = waits[i] ? gain_of(graph, i, options) : 0;
    small[i] = own > 0;
    gain += std::max(own, 0.0);
  }
  const bool all = gain >= kBesideLarge * large_rounds(graph, small, workers);
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    if (!small[i] || !(all || is_exchange(graph, graph.ops[i]))) continue;
    abi::MatmulTileParams& p = graph.ops[i].op.record.params.matmul;
    p.tile_m = kSmallTile.rows;
    p.tile_n = kSmallTile.columns;
    p.tile_k = kSmallTile.k;
  }
}

}  // namespace ark::planner
