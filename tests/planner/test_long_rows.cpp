// How many rows a tile of a row program has: a CTA's, a warp's, or a few threads'.
#include <algorithm>

#include "support/tiled.h"

using namespace ark;
using namespace ark::test;

namespace {

int64_t rows_of_tile(int64_t rows, int64_t width, int workers, bool spread = false) {
  Builder b;
  auto x = b.input("x", {rows, width}), y = b.storage("y", {rows, width});
  b.program_op(TaskKind::kRow, "rows", {rows, width}, 1, {b.dense_ref(x)}, {b.dense_ref(y)});
  b.graph.ops.back().spread_rows = spread;
  planner::Options options;
  options.machine.num_workers = workers;
  return find(tiled(b, options), "rows").record.params.program.tile;
}

/// Few rows of 4096 and more are a CTA's each; many rows of 4096, and shorter ones, a warp's.
void test_long_rows() {
  for (const int64_t rows : {1, 8, 16}) expect_equal(rows_of_tile(rows, 4096, 132), 1, "few rows of 4096");
  expect_equal(rows_of_tile(17, 4096, 132), 8, "more rows of 4096");
  expect_equal(rows_of_tile(8, 4095, 132), 8, "few shorter rows");
  expect_equal(rows_of_tile(17, 4097, 132), 1, "longer rows");
  expect_equal(rows_of_tile(8, 4096, 4), 8, "not few for so many workers");
}

/// The tile of a norm of the rows of a product m x n.
int64_t rows_behind(int64_t m, int64_t n) {
  Builder b;
  auto x = b.input("x", {m, 256}, false), w = b.input("w", {n, 256}), y = b.storage("y", {m, n}),
       z = b.storage("z", {m, n});
  b.output(z);
  b.matmul("product", 1, m, n, 256, {x, {0, 256, 1}}, {w, {0, 1, 256}}, {y, {0, n, 1}});
  b.program_op(TaskKind::kRow, "rows", {m, n}, 1, {b.dense_ref(y)}, {b.dense_ref(z)});
  planner::Options options;
  options.machine.num_workers = 132;
  const planner::Draft draft = tiled(b, options);
  return std::ranges::find_if(draft.graph.ops, [](const FusedOp& op) { return op.op.record.kind == TaskKind::kRow; })
      ->op.record.params.program.tile;
}

/// Products of few rows need a kernel of their own, so that rows beside them may be spread; those of many share one.
void test_behind_products() {
  expect_equal(rows_behind(128, 1024), 1, "rows of small tiles");
  expect_equal(rows_behind(64, 2048), 1, "longer ones");
  expect_equal(rows_behind(128, 1016), 8, "shorter ones");
  expect_equal(rows_behind(140, 1024), 8, "more rows than workers");
  expect_equal(rows_behind(132, 4096), 8, "rows of large tiles");
}

/// Parts of longer rows: a worker each, while there are no more of them than workers.
void test_spread_rows() {
  expect_equal(rows_of_tile(48, 2672, 132, true), 1, "parts of a row");
  expect_equal(rows_of_tile(132, 2672, 132, true), 1, "a part for each worker");
  expect_equal(rows_of_tile(133, 2672, 132, true), 8, "more parts than workers");
}

/// Tiles of rows do not count them as a vector's elements: 8 rows in 16 parts, of which each row has a number.
void test_rows_of_two_dims() {
  Builder b;
  auto x = b.input("x", {8, 16, 8016}), bound = b.input("bound", {8}), y = b.storage("y", {8, 16, 8016});
  Ref same = b.dense_ref(bound);
  same.strides = {1, 0, 0};
  b.program_op(TaskKind::kRow, "rows", {8, 16, 8016}, 1, {b.dense_ref(x), same}, {b.dense_ref(y)});
  b.graph.ops.back().spread_rows = true;
  const plan::Op op = find(tiled(b), "rows");
  expect_equal(op.record.params.program.tile, 1, "rows of two dimensions");
  expect_equal(op.record.grid[0] * op.record.grid[1] * op.record.grid[2], 128, "tiles of them");
}

/// A tile of short rows has so many that it is worth its own cost; rows of a warp stay as few as balance asks for.
void test_short_rows() {
  expect_equal(rows_of_tile(100000, 64, 132), 256, "many rows of 64");
  expect_equal(rows_of_tile(30000, 320, 132), 128, "many rows of 320");
  expect_equal(rows_of_tile(2364, 197, 132), 32, "one turn of rows of 197");
  expect_equal(rows_of_tile(1000, 64, 132), 8, "few rows of 64");
  expect_equal(rows_of_tile(8192, 1024, 132), 32, "rows of 1024");
}

}  // namespace

int main() {
  test_long_rows();
  test_behind_products();
  test_spread_rows();
  test_rows_of_two_dims();
  test_short_rows();
  return finish("long rows");
}
