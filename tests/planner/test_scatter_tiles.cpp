// Tiles of sums by index (planner/tile/tile_scatter_sum): every worker has some where there is enough to do, and none
// has many small ones, as each looks at all indices.
#include <random>

#include "planner/tile/tile_scatter_sum.h"
#include "support/check.h"

using namespace ark;

namespace {

constexpr int kWorkers = 132;

struct Tiles {
  abi::ScatterSumParams p;
  int64_t count;
};

Tiles tiles_of(int rows, int terms, int columns, DType dtype, double beside = 1) {
  using X = abi::ScatterSumOperand;
  planner::FusedOp op;
  abi::ScatterSumParams& p = op.op.record.params.scatter_sum;
  p = {};
  p.rows = rows, p.terms = terms, p.columns = columns, p.dtype = static_cast<int>(dtype);
  op.op.operands.resize(X::kCount);
  for (abi::Operand& o : op.op.operands) {
    o = {};
    o.stride[0] = columns, o.stride[1] = 1;
  }
  planner::Options options;
  options.machine.num_workers = kWorkers;
  planner::tile_scatter_sum(op, options, beside);
  const int64_t wide = int64_t{p.lanes} * p.vector;
  return {p, (rows + p.tile_rows - 1) / p.tile_rows * ((columns + wide - 1) / wide)};
}

void any_sizes() {
  std::mt19937 random(5);
  for (int i = 0; i < 2000; ++i) {
    const auto up_to = [&](int n) { return 1 + static_cast<int>(random() % static_cast<unsigned>(n)); };
    const int rows = up_to(i % 2 != 0 ? 60000 : 600), terms = up_to(20000), columns = up_to(2000);
    const auto [p, count] = tiles_of(rows, terms, columns, i % 3 == 0 ? DType::kF32 : DType::kBF16);
    EXPECT(p.tile_rows >= 1 && p.tile_rows <= abi::kScatterMostRows && (p.tile_rows & (p.tile_rows - 1)) == 0);
    EXPECT(p.lanes == abi::kScatterLanes || p.lanes == abi::kScatterFewLanes);
    // a list holds what a tile's rows have, if they are spread evenly; else few rows are added together
    EXPECT(p.tile_rows * p.lanes <= 256 || int64_t{p.tile_rows} * terms <= int64_t{700} * rows);
  }
}

void every_worker() {
  const auto [p, count] = tiles_of(512, 3840, 1024, DType::kBF16);
  EXPECT(count <= kWorkers && count * 10 >= kWorkers * 9);  // indices are looked at once
  const auto [wide, many] = tiles_of(50257, 1024, 768, DType::kBF16);
  EXPECT(wide.tile_rows >= 128 && many >= 2 * kWorkers);
}

/// Where as many others stand beside the op as keep all workers busy, indices are looked at less often.
void beside() {
  const auto [alone, count] = tiles_of(512, 3840, 1024, DType::kBF16);
  const auto [many, fewer] = tiles_of(512, 3840, 1024, DType::kBF16, 32);
  EXPECT(fewer * 4 <= count && fewer * 32 >= kWorkers);
  EXPECT(many.tile_rows * many.lanes >= 4 * alone.tile_rows * alone.lanes);
}

}  // namespace

int main() {
  any_sizes();
  every_worker();
  beside();
  return test::result("scatter tiles");
}
