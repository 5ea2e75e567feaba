// Tiles of pointwise ops whose domain has several dimensions (planner/tile/flat_tiles.h).
#include "support/tiled.h"

using namespace ark;
using namespace ark::test;

namespace {

/// Pointwise ops whose rows share a number: as few tiles for the worker with most of them as rows allow.
void test_pointwise_of_rows() {
  const auto tile_of = [](int64_t n, int64_t c, int64_t size) {
    Builder b;
    auto x = b.input("x", {n, c, size}), w = b.input("w", {c}), y = b.storage("y", {n, c, size});
    Ref same = b.dense_ref(w);
    same.strides = {0, 1, 0};
    b.program_op(TaskKind::kPointwise, "norm", {n, c, size}, 0, {b.dense_ref(x), same}, {b.dense_ref(y)});
    return find(tiled(b), "norm").record.params.program.tile;
  };
  expect_equal(tile_of(8, 256, 3136), int64_t{16 * 3136}, "a tile for each worker");
  expect_equal(tile_of(1, 96, 3025), int64_t{3025}, "no fifths of rows");
  expect_equal(tile_of(8, 2048, 49), int64_t{128 * 49}, "128 rows");
  expect_equal(tile_of(1, 8, 64), int64_t{512}, "little work: one tile");
  expect(tile_of(64, 512, 4096) <= 32768, "much work: tiles stay small");
}

}  // namespace

int main() {
  test_pointwise_of_rows();
  return finish("flat tiles");
}
