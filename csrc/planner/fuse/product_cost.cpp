#include "planner/fuse/product_cost.h"

#include <algorithm>
#include <limits>

#include "planner/k_steps.h"
#include "planner/strip_width.h"
#include "planner/tile_forms.h"

namespace ark::planner {
namespace {

double share_of(abi::TaskKind kind, const Machine& machine) {
  return machine.costs.kinds[static_cast<size_t>(kind)].bytes;
}

/// Of what memory gives, where weights come by strips as wide as a product of its own would have them.
double strip_share(const FewProduct& product, const Machine& machine) {
  if (!product.columns) return 1.0;
  abi::MatmulRowsParams p{};
  p.m = static_cast<int>(product.m), p.k = static_cast<int>(product.k);
  p.lanes = 1, p.num_segments = 1, p.segment[0].num_units = static_cast<int>(product.n);
  return line_rate(machine.costs, strip_columns(p, machine));
}

/// The parts of k that the product is split into when it has tiles of this form.
KParts parts_of(const FewProduct& product, const TileForm& form, const Machine& machine) {
  const bool small = form.rows == kSmallTile.rows;
  if (form.columns == kWideTile.columns || product.n % 4 != 0) return {};
  const KSteps steps = *k_steps(abi::TaskKind::kMatmulTile, small, machine.costs);
  const int64_t tiles = steps.tiles(product.m, product.n);
  if (tiles * steps.share > machine.num_workers) return {};
  return steps.split(product.k, steps.fitting(product.k, tiles, steps.parts, machine.num_workers), steps.combine);
}

}  // namespace

double few_rows_seconds(const FewProduct& product, const Machine& machine) {
  const double share = share_of(abi::TaskKind::kMatmulRows, machine) * strip_share(product, machine);
  const auto activation = static_cast<double>(2 * product.m * product.k * machine.num_workers);
  return product.weight_bytes() / (machine.read_bytes_per_second * share) +
         activation / machine.costs.activation_bytes_per_second;
}

double tiles_seconds(const FewProduct& product, const Machine& machine) {
  double best = std::numeric_limits<double>::max();
  for (const TileForm& form : {kWideTile, kNarrowTile, kSmallTile}) {
    if (form.rows == kSmallTile.rows && product.k % abi::kSmallTileBlock != 0) continue;
    const KParts parts = parts_of(product, form, machine);
    const int64_t rows = (product.m + form.rows - 1) / form.rows,
                  columns = (product.n + form.columns - 1) / form.columns;
    const int64_t workers = machine.num_workers, waves = (rows * columns * parts.count + workers - 1) / workers;
    const double each = tile_seconds(machine.costs, form, product.k / parts.count, 1);
    best = std::min(best, static_cast<double>(waves) * each + parts.seconds);
  }
  const double share = share_of(abi::TaskKind::kMatmulTile, machine);
  return std::max(best, product.weight_bytes() / (machine.read_bytes_per_second * share));
}

}  // namespace ark::planner
