// Few rows or tiles: which of both is sooner follows from costs, and agrees with what was measured.
#include "planner/fuse/product_cost.h"
#include "support/check.h"
#include "support/verify_plans.h"

using namespace ark;
using namespace ark::test;
using planner::FewProduct;
using planner::Machine;

namespace {

bool in_tiles(const FewProduct& product, const Machine& machine = {}) {
  return planner::tiles_seconds(product, machine) < planner::few_rows_seconds(product, machine);
}

/// The fewest rows from which on tiles are sooner; 17: never.
int64_t first_in_tiles(FewProduct product, const Machine& machine = {}) {
  for (product.m = 1; product.m <= abi::kMostFewRows && !in_tiles(product, machine);) ++product.m;
  for (FewProduct more = product; more.m <= abi::kMostFewRows; ++more.m) EXPECT(in_tiles(more, machine));
  return product.m;
}

/// us of the family for few rows (benchmarks/results/h200/sweep_loaders_few_rows.json), where a product fills the
/// machine. Tiles take 12.87 to 13.34 of 24 to 64 rows, of whatever weights: those of fewer rows cost them the same.
struct Measured {
  int64_t m;
  bool columns;
  double few;
};
constexpr double kTiles[2] = {12.87, 13.34};
constexpr Measured kMeasured[] = {
    {1, false, 8.19},   {2, false, 9.43},   {3, false, 9.64},  {4, false, 9.83},  {5, false, 9.98}, {8, false, 10.76},
    {12, false, 11.87}, {16, false, 12.97}, {1, true, 12.52},  {2, true, 12.36},  {3, true, 12.64}, {4, true, 12.83},
    {5, true, 12.87},   {8, true, 13.5},    {12, true, 15.34}, {16, true, 16.71},
};

void test_measured() {
  int sooner = 0;
  for (const Measured& x : kMeasured) {
    const FewProduct product{x.m, 8192, 2048, x.columns};
    if (x.few <= kTiles[0]) EXPECT(!in_tiles(product));
    if (x.few > kTiles[1]) EXPECT(in_tiles(product));
    sooner += x.few > kTiles[1];
    const double few = planner::few_rows_seconds(product, {}) * 1e6;
    EXPECT(0.8 * x.few < few && few < 1.05 * x.few);  // a launch is shared by 14, some 1.3 us each
  }
  EXPECT_EQ(sooner, 3);
}

/// Steps of models with 1 to 16 rows, which by few-row products were sooner than with tiles.
void test_models() {
  const std::pair<int64_t, int64_t> k_n[] = {{2048, 2048},  {2048, 8192}, {8192, 2048}, {2048, 128256}, {4096, 4096},
                                             {4096, 14336}, {1024, 3072}, {3072, 1024}, {768, 50257}};
  for (const auto& [k, n] : k_n) EXPECT_EQ(first_in_tiles({1, k, n, false}), 17);
  for (const auto& [k, n] : {std::pair{768, 2304}, {768, 768}, {768, 3072}, {3072, 768}})
    EXPECT(!in_tiles({1, k, n, true}));
}

/// The border is where the costs are equal: it moves as they do.
void test_border() {
  const FewProduct product{1, 8192, 2048, true};
  const int64_t border = first_in_tiles(product);
  EXPECT(border > 1 && border <= abi::kMostFewRows);
  Machine machine;
  machine.costs.activation_bytes_per_second /= 2;
  EXPECT(first_in_tiles(product, machine) < border);
  machine.costs.activation_bytes_per_second *= 1e3;  // reading it costs nothing: rows are alike
  EXPECT_EQ(first_in_tiles(product, machine), 17);
  machine = {};
  machine.costs.strip_16 = 1.0;  // as weights [n][k]
  EXPECT_EQ(first_in_tiles(product, machine), first_in_tiles({1, 8192, 2048, false}));
  machine = {};
  machine.costs.kinds[static_cast<size_t>(abi::TaskKind::kMatmulTile)].bytes = 0.3;
  EXPECT_EQ(first_in_tiles(product, machine), 17);
}

/// Tiles of a long k and few columns are worth it only in parts.
void test_parts() {
  const FewProduct product{16, 8192, 1024, true};
  EXPECT(in_tiles(product));
  Machine whole;
  whole.costs.split = whole.costs.split_small = 1;
  EXPECT(!in_tiles(product, whole));
  EXPECT(planner::tiles_seconds(product, {}) < 0.8 * planner::tiles_seconds(product, whole));
  // 2 columns more are no whole vectors, and are not split
  EXPECT(planner::tiles_seconds({16, 8192, 1026, true}, {}) >= planner::tiles_seconds(product, whole));
}

void test_plans() {
  for (const auto& [k, n] : {std::pair{8192, 2048}, {768, 768}, {4096, 4096}})
    for (int64_t m = 1; m <= abi::kMostFewRows; ++m) {
      if (abi::column_windows(static_cast<int>(m), k) > abi::kMostWindows) continue;
      const plan::Plan plan = plan_of(product_of_columns(m, k, n), true, true, 132);
      const abi::TaskKind kind = in_tiles({m, k, n, true}) ? abi::TaskKind::kMatmulTile : abi::TaskKind::kMatmulRows;
      EXPECT(plan.ops.at(0).record.kind == kind);
    }
}

}  // namespace

int main() {
  test_measured();
  test_models();
  test_border();
  test_parts();
  test_plans();
  return test::result("product cost");
}
