// How many rows a tile of a row program has: a CTA's or a warp's.
#include "support/tiled.h"

using namespace ark;
using namespace ark::test;

namespace {

/// Few rows of 4096 and more are a CTA's each; many rows of 4096, and shorter ones, a warp's.
void test_long_rows() {
  const auto rows_of_tile = [](int64_t rows, int64_t width, int workers) {
    Builder b;
    auto x = b.input("x", {rows, width}), y = b.storage("y", {rows, width});
    b.program_op(TaskKind::kRow, "rows", {rows, width}, 1, {b.dense_ref(x)}, {b.dense_ref(y)});
    planner::Options options;
    options.machine.num_workers = workers;
    return find(tiled(b, options), "rows").record.params.program.tile;
  };
  for (const int64_t rows : {1, 8, 16}) expect_equal(rows_of_tile(rows, 4096, 132), 1, "few rows of 4096");
  expect_equal(rows_of_tile(17, 4096, 132), 8, "more rows of 4096");
  expect_equal(rows_of_tile(8, 4095, 132), 8, "few shorter rows");
  expect_equal(rows_of_tile(17, 4097, 132), 1, "longer rows");
  expect_equal(rows_of_tile(8, 4096, 4), 8, "not few for so many workers");
}

}  // namespace

int main() {
  test_long_rows();
  return finish("long rows");
}
