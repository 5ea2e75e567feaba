#include "planner/tile/columns.h"

#include <algorithm>
#include <cmath>

#include "planner/depend.h"
#include "planner/tile/tile_sizes.h"
#include "planner/tile_forms.h"

namespace ark::planner {
namespace {

constexpr int kWide = kWideTile.columns, kNarrow = kNarrowTile.columns;
/// Beyond so many waves, what the last one leaves idle does not count.
constexpr int64_t kMaxWaves = 8;

const abi::MatmulTileParams& params_of(const FusedOp& op) { return op.op.record.params.matmul; }

int64_t tiles_of(const FusedOp& op, int columns) {
  return tiles_of(params_of(op), columns == kWide ? kWideTile : kNarrowTile);
}

/// Time of an op's tiles in units of a wide one. In whole waves of the workers where others wait for it, else what it
/// takes of their time.
double grid_time(const FusedOp& op, int columns, const Machine& machine, bool awaited) {
  const double waves = static_cast<double>(tiles_of(op, columns)) / machine.num_workers;
  return (awaited ? std::ceil(waves) : waves) * (columns == kWide ? 1.0 : machine.costs.narrow_share);
}

/// When the workers, all idle, have done so many wide tiles and then so many narrow ones.
double end_of(int64_t wide, int64_t narrow, const Machine& machine) {
  const int64_t workers = machine.num_workers;
  const int64_t late = wide % workers, count[2] = {workers - late, late};  // workers with one wide tile more
  const auto waves = static_cast<double>(wide / workers);
  double free[2] = {waves, waves + 1}, end = free[late > 0];
  while (narrow > 0) {
    const int next = late > 0 && free[1] < free[0];
    narrow -= count[next];
    free[next] += machine.costs.narrow_share;
    end = std::max(end, free[next]);
  }
  return end;
}

}  // namespace

std::vector<size_t> last_products(const FusedGraph& graph, int64_t workers) {
  const std::vector<bool> read = read_ops(graph);
  std::vector<size_t> found;
  double flops = 0, all = 0;
  int64_t tiles = 0;
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    const FusedOp& op = graph.ops[i];
    all += static_cast<double>(op.op.flops);
    if (op.op.record.kind != abi::TaskKind::kMatmulTile || read[i]) continue;
    if (!found.empty() && params_of(op).k != params_of(graph.ops[found[0]]).k) return {};
    found.push_back(i);
    flops += static_cast<double>(op.op.flops);
    tiles += tiles_of(op, kWide);
  }
  if (flops * 2 < all || tiles > kMaxWaves * workers) return {};
  auto size = [&](size_t i) { return tiles_of(graph.ops[i], kWide); };
  std::stable_sort(found.begin(), found.end(), [&](size_t a, size_t b) { return size(a) < size(b); });
  return found;
}

std::vector<int> tile_columns(const FusedGraph& graph, const Options& options) {
  const Machine& machine = options.machine;
  const std::vector<bool> awaited = awaited_ops(graph);
  std::vector<int> columns(graph.ops.size(), kWide);
  for (size_t i = 0; i < columns.size(); ++i) {
    const FusedOp& op = graph.ops[i];
    if (op.op.record.kind != abi::TaskKind::kMatmulTile) continue;
    if (grid_time(op, kNarrow, machine, awaited[i]) < grid_time(op, kWide, machine, awaited[i])) columns[i] = kNarrow;
  }
  std::vector<size_t> last = last_products(graph, machine.num_workers);
  std::erase_if(last, [&](size_t i) { return has_small_tiles(graph.ops[i]); });
  int64_t wide = 0, narrow = 0;
  for (size_t i : last) wide += tiles_of(graph.ops[i], kWide);
  double best = end_of(wide, narrow, machine);
  size_t best_count = 0;
  for (size_t count = 1; count <= last.size(); ++count) {
    wide -= tiles_of(graph.ops[last[count - 1]], kWide);
    narrow += tiles_of(graph.ops[last[count - 1]], kNarrow);
    const double end = end_of(wide, narrow, machine);
    if (end < best - 1e-6) best = end, best_count = count;
  }
  for (size_t i = 0; i < last.size(); ++i) columns[last[i]] = i < best_count ? kNarrow : kWide;
  return columns;
}

}  // namespace ark::planner
