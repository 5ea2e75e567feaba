#include "planner/tile/columns.h"

#include <algorithm>
#include <cmath>

#include "planner/depend.h"
#include "planner/tile/tile.h"

namespace ark::planner {
namespace {

constexpr int kWide = 256, kNarrow = 128;
/// A tile of 128 x 128 in units of one of 128 x 256: 0.61 to 0.66 measured.
constexpr double kNarrowTime = 0.64;
/// Beyond so many waves, what the last one leaves idle does not count.
constexpr int64_t kMaxWaves = 8;

const abi::MatmulTileParams& params_of(const FusedOp& op) { return op.op.record.params.matmul; }

int64_t tiles_of(const FusedOp& op, int columns) {
  const abi::MatmulTileParams& p = params_of(op);
  const int64_t rows = (p.m + kMatmulTileM - 1) / kMatmulTileM;
  return p.batch * rows * ((p.n + columns - 1) / columns);
}

/// Time of an op's tiles in units of a wide one. In whole waves of the workers where others wait for it, else what it
/// takes of their time.
double grid_time(const FusedOp& op, int columns, int workers, bool awaited) {
  const double waves = static_cast<double>(tiles_of(op, columns)) / workers;
  return (awaited ? std::ceil(waves) : waves) * (columns == kWide ? 1.0 : kNarrowTime);
}

/// When the workers, all idle, have done so many wide tiles and then so many narrow ones.
double end_of(int64_t wide, int64_t narrow, int64_t workers) {
  const int64_t late = wide % workers, count[2] = {workers - late, late};  // workers with one wide tile more
  const auto waves = static_cast<double>(wide / workers);
  double free[2] = {waves, waves + 1}, end = free[late > 0];
  while (narrow > 0) {
    const int next = late > 0 && free[1] < free[0];
    narrow -= count[next];
    free[next] += kNarrowTime;
    end = std::max(end, free[next]);
  }
  return end;
}

/// Products that nobody waits for, where little else is to be done: the order puts those with narrow tiles last, so
/// that they fill up the last wave. Their places in the graph, smallest first; none where waves do not matter.
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

}  // namespace

std::vector<int> tile_columns(const FusedGraph& graph, const Options& options) {
  const int workers = options.machine.num_workers;
  const std::vector<bool> awaited = awaited_ops(graph);
  std::vector<int> columns(graph.ops.size(), kWide);
  for (size_t i = 0; i < columns.size(); ++i) {
    const FusedOp& op = graph.ops[i];
    if (op.op.record.kind != abi::TaskKind::kMatmulTile) continue;
    if (grid_time(op, kNarrow, workers, awaited[i]) < grid_time(op, kWide, workers, awaited[i])) columns[i] = kNarrow;
  }
  const std::vector<size_t> last = last_products(graph, workers);
  int64_t wide = 0, narrow = 0;
  for (size_t i : last) wide += tiles_of(graph.ops[i], kWide);
  double best = end_of(wide, narrow, workers);
  size_t best_count = 0;
  for (size_t count = 1; count <= last.size(); ++count) {
    wide -= tiles_of(graph.ops[last[count - 1]], kWide);
    narrow += tiles_of(graph.ops[last[count - 1]], kNarrow);
    const double end = end_of(wide, narrow, workers);
    if (end < best - 1e-6) best = end, best_count = count;
  }
  for (size_t i = 0; i < last.size(); ++i) columns[last[i]] = i < best_count ? kNarrow : kWide;
  return columns;
}

}  // namespace ark::planner
