// Few rows and weights [k][n]: how wide strips are, and that workers share them whole.
#include "planner/strip_width.h"
#include "support/check.h"
#include "support/verify_plans.h"

using namespace ark;
using namespace ark::test;

namespace {

int width(int m, std::vector<int> units, int workers = 132, int lanes = 1, int pair = 0) {
  abi::MatmulRowsParams p{};
  p.m = m, p.num_segments = static_cast<int>(units.size()), p.lanes = lanes;
  p.gated = lanes == 2 && pair == 0, p.pair_distance = pair;
  for (size_t s = 0; s < units.size(); ++s) p.segment[s].num_units = units[s];
  return planner::strip_columns(p, {.num_workers = workers});
}

void test_widths() {
  EXPECT_EQ(width(1, {768}), 16);  // 96 of 8 are no quicker than 48 of 16
  EXPECT_EQ(width(1, {1600}), 16);
  EXPECT_EQ(width(1, {3072}), 16);  // 96 strips of 32 would leave workers without any
  EXPECT_EQ(width(1, {2304, 768, 768}), 16);
  EXPECT_EQ(width(1, {16384}), 32);  // 256 strips of 64: fewer than two a worker
  EXPECT_EQ(width(1, {50257}), 64);
  EXPECT_EQ(width(8, {50257}), 32);
  EXPECT_EQ(width(9, {50257}), 16);
  EXPECT_EQ(width(1, {768}, 4), 64);
  // of two lanes, half as many columns fit
  EXPECT_EQ(width(1, {50000}, 132, 2), 32);
  EXPECT_EQ(width(8, {50000}, 132, 2), 16);
  EXPECT_EQ(width(16, {50000}, 132, 2), 8);
  EXPECT_EQ(width(1, {50000}, 132, 2, 64), 32);
  EXPECT_EQ(width(1, {50000}, 132, 2, 24), 8);  // a strip's pairs lie together
}

void test_shares(int64_t m, int64_t k, int64_t n, int workers, size_t busy) {
  const plan::Plan plan = plan_of(product_of_columns(m, k, n), true, true, workers);
  const plan::Op& op = plan.ops.at(0);
  EXPECT(op.record.kind == abi::TaskKind::kMatmulRows);
  const int columns = op.record.params.rows.columns;
  size_t having = 0;
  for (const auto& list : plan.lists) {
    having += !list.empty();
    for (const abi::WorkItem& item : list) {
      EXPECT_EQ(item.first % columns, 0);
      EXPECT(m > 1 || item.count <= abi::kMaxRowsPerItem);
    }
  }
  EXPECT_EQ(having, busy);
}

}  // namespace

int main() {
  test_widths();
  test_shares(1, 768, 16 * 132, 132, 132);
  test_shares(1, 768, 768, 132, 48);
  test_shares(8, 3072, 2304, 132, 132);
  test_shares(16, 512, 104, 4, 4);
  test_shares(1, 512, 2000, 2, 2);
  return test::result("column strips");
}
