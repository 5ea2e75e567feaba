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

/// At most as many tiles as workers, and sooner done than with large ones.
bool pays(const FusedGraph& graph, size_t product, const Options& options) {
  const FusedOp& op = graph.ops[product];
  if (!fits(graph, op) || tiles_of(op.op.record.params.matmul, kSmallTile) > options.machine.num_workers) return false;
  const KParts large = k_parts(graph, product, options, false), small = k_parts(graph, product, options, true);
  double other = grid_seconds(op, kNarrowTile, large, options);
  if (large.count == 1) other = std::min(other, grid_seconds(op, kWideTile, large, options));
  return grid_seconds(op, kSmallTile, small, options) < other;
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
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    if (!waits[i] || !pays(graph, i, options)) continue;
    abi::MatmulTileParams& p = graph.ops[i].op.record.params.matmul;
    p.tile_m = kSmallTile.rows;
    p.tile_n = kSmallTile.columns;
    p.tile_k = kSmallTile.k;
  }
}

}  // namespace ark::planner
