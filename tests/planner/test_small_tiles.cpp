// Which products get tiles of 64 x 64 with steps of 128 k, on both sides of each border.
#include <string>

#include "support/sample_graphs.h"
#include "support/tiled.h"

using namespace ark;
using namespace ark::test;

namespace {

constexpr char kSmall[] = "64 x 64 x 128", kNarrow[] = "128 x 128 x 64", kWide[] = "128 x 256 x 64";

std::string grid(const plan::Op& op) { return cat(op.record.grid[0], " ", op.record.grid[1], " ", op.record.grid[2]); }
std::string tile_of(const plan::Op& op) {
  const abi::MatmulTileParams& p = op.record.params.matmul;
  return cat(p.tile_m, " x ", p.tile_n, " x ", p.tile_k);
}

struct Shape {
  int64_t m, n, k;
  int64_t batch = 1;
  int pair_distance = 0;
};

/// `count` products of one shape, each with operands of its own; weights n x k.
Builder products(const Shape& s, int count) {
  Builder b;
  for (int i = 0; i < count; ++i) {
    auto x = b.input(cat("x", i), {s.batch, s.m, s.k}, false), w = b.input(cat("w", i), {s.batch, s.n, s.k}),
         y = b.storage(cat("y", i), {s.batch, s.m, s.n});
    b.output(y);
    FusedOp& op = b.matmul(cat("y", i), s.batch, s.m, s.n, s.k, {x, {s.m * s.k, s.k, 1}}, {w, {s.n * s.k, 1, s.k}},
                           {y, {s.m * s.n, s.n, 1}});
    op.op.record.params.matmul.pair_distance = s.pair_distance;
  }
  return b;
}

/// Ops, tile and grid of a product alone.
std::string tiles(const Shape& s, int workers = 132) {
  Builder b = products(s, 1);
  planner::Options options;
  options.machine.num_workers = workers;
  const planner::Draft draft = tiled(b, options);
  const plan::Op& op = draft.graph.ops[0].op;
  return cat(draft.graph.ops.size(), ": ", tile_of(op), ", ", grid(op));
}

void test_number_of_tiles() {
  expect_equal(tiles({128, 1024, 1024}), cat("1: ", kSmall, ", 1 2 16"), "BERT-Large's 128 tokens");
  expect_equal(tiles({512, 1024, 1024}), cat("1: ", kSmall, ", 1 8 16"), "128 tiles");
  expect_equal(tiles({704, 768, 1024}), cat("1: ", kSmall, ", 1 11 12"), "132 tiles");
  expect_equal(tiles({704, 769, 1024}), cat("1: ", kNarrow, ", 1 6 7"), "143 tiles");
  expect_equal(tiles({705, 768, 1024}), cat("1: ", kNarrow, ", 1 6 6"), "144 tiles");
  expect_equal(tiles({1, 64, 64}), cat("1: ", kSmall, ", 1 1 1"), "one tile");
  expect_equal(tiles({100, 1024, 1024, 4}), cat("1: ", kSmall, ", 4 2 16"), "a batch of 128 tiles");
  expect_equal(tiles({100, 1024, 1024, 5}), cat("1: ", kNarrow, ", 5 1 8"), "a batch of 160 tiles");
  expect_equal(tiles({128, 1024, 1024}, 32), cat("1: ", kSmall, ", 1 2 16"), "as many tiles as workers");
  expect_equal(tiles({128, 1024, 1024}, 31), cat("1: ", kNarrow, ", 1 1 8"), "fewer workers");
}

void test_what_they_can_do() {
  expect_equal(tiles({128, 1024, 1032}), cat("1: ", kNarrow, ", 1 1 8"), "k is no multiple of 64");
  expect_equal(tiles({128, 1024, 1024, 1, 32}), cat("1: ", kSmall, ", 1 2 16"), "pairs 32 apart");
  expect_equal(tiles({128, 1024, 1024, 1, 64}), cat("1: ", kNarrow, ", 1 1 8"), "pairs 64 apart");
  Builder b = products({128, 1024, 1024}, 1);
  b.graph.ops[0].op.operands[0].offset = 4;
  expect(find(tiled(b), "y0").record.kind == abi::TaskKind::kMatmulSimple, "rows off alignment");
}

/// Parts of k, and where large tiles in more parts are done sooner.
void test_long_k() {
  expect_equal(tiles({128, 1024, 4096}), cat("2: ", kSmall, ", 4 2 16"), "32 tiles, 4 parts");
  expect_equal(tiles({128, 1024, 2048}), cat("2: ", kSmall, ", 4 2 16"), "2048 k");
  expect_equal(tiles({128, 1024, 1792}), cat("1: ", kSmall, ", 1 2 16"), "1792 k");
  expect_equal(tiles({64, 33 * 64, 4096}), cat("2: ", kSmall, ", 4 1 33"), "33 tiles");
  expect_equal(tiles({64, 34 * 64, 4096}), cat("1: ", kSmall, ", 1 1 34"), "34 tiles");
  expect_equal(tiles({128, 1022, 4096}), cat("1: ", kSmall, ", 1 2 16"), "rows of the parts are no vectors");
  expect_equal(tiles({128, 2048, 4096}), cat("1: ", kSmall, ", 1 2 32"), "64 tiles");
  expect_equal(tiles({128, 2048, 8192}), cat("2: ", kNarrow, ", 8 1 16"), "64 tiles and 8192 k: 8 parts of 16 tiles");
}

/// Ops that products of one activation become, with parts of k where those of all fit beside each other.
size_t ops_of_one_activation(const std::vector<int64_t>& columns) {
  Builder b;
  auto x = b.input("x", {64, 2048}, false);
  for (size_t i = 0; i < columns.size(); ++i) {
    const int64_t n = columns[i];
    auto w = b.input(cat("w", i), {n, 2048}), y = b.storage(cat("y", i), {64, n});
    b.output(y);
    b.matmul(cat("y", i), 1, 64, n, 2048, {x, {0, 2048, 1}}, {w, {0, 1, 2048}}, {y, {0, n, 1}});
  }
  planner::Options options;
  options.machine.num_workers = 132;
  return tiled(b, options).graph.ops.size();
}

void test_parts_of_one_activation() {
  expect_equal(ops_of_one_activation({2048}), 2, "32 tiles in parts, and their sum");
  expect_equal(ops_of_one_activation({512, 512}), 4, "16 tiles");
  expect_equal(ops_of_one_activation({2048, 512, 512}), 3, "48 tiles, of which parts would take turns");
}

/// Nobody waits for the products, and they are all that is to be done: small if all of them together are few.
void test_unread_products() {
  const auto tiles_of_each = [](int count) {
    Builder b = products({128, 1024, 1024}, count);
    const planner::Draft draft = tiled(b);
    std::string all = tile_of(draft.graph.ops[0].op);
    for (const FusedOp& op : draft.graph.ops) expect_equal(tile_of(op.op), all, "the same for all of them");
    return all;
  };
  expect_equal(tiles_of_each(4), std::string(kSmall), "4 x 32 tiles");
  expect_equal(tiles_of_each(5), std::string(kNarrow), "5 x 32 tiles");
}

/// The tile of a product of 128 x 1024 x 1024 beside one of n x n x 1024, whether somebody reads it or not.
std::string tile_beside(int64_t n, bool is_read) {
  Builder b = products({128, 1024, 1024}, 1);
  auto x = b.input("x", {n, 1024}, false), w = b.input("w", {n, 1024}), y = b.storage("y", {n, n}),
       z = b.storage("z", {n, n});
  b.output(z);
  b.matmul("y", 1, n, n, 1024, {x, {0, 1024, 1}}, {w, {0, 1, 1024}}, {y, {0, n, 1}});
  b.program_op(abi::TaskKind::kPointwise, "z", {n, n}, 0, {b.dense_ref(y)}, {b.dense_ref(z)});
  if (is_read) {
    const StorageId own = b.graph.fresh_storage[0];
    auto copy = b.storage("copy", {1, 128, 1024});
    b.output(copy);
    b.program_op(abi::TaskKind::kPointwise, "copy", {1, 128, 1024}, 0, {b.dense_ref(own)}, {b.dense_ref(copy)});
  }
  return tile_of(find(tiled(b), "y0"));
}

/// Beside one that takes the machine for long: it must be waited for, and gain more than the code of small tiles costs
/// the others.
void test_product_beside_others() {
  expect_equal(tile_beside(4096, true), std::string(kSmall), "beside 4 rounds of tiles");
  expect_equal(tile_beside(8192, true), std::string(kNarrow), "beside 16 rounds of tiles");
  expect_equal(tile_beside(4096, false), std::string(kWide), "nobody waits");
}

/// Boxes of a page: 64 rows by 128 k, k-major in two blocks.
void test_maps() {
  Builder b;
  auto x = b.input("x", {3, 100, 192}, false), w = b.input("w", {3, 192, 72}), y = b.storage("y", {3, 100, 72});
  b.output(y);
  b.matmul("y", 3, 100, 72, 192, {x, {19200, 192, 1}}, {w, {13824, 72, 1}}, {y, {7200, 72, 1}});
  const planner::Draft draft = tiled(b);
  const abi::MatmulTileParams& p = find(draft, "y").record.params.matmul;
  const plan::TensorMap &a = draft.maps.at(p.map_a), &rows = draft.maps.at(p.map_b);
  expect(a.sizes == std::vector<int64_t>{64, 100, 3, 3} && a.box == std::vector<int32_t>{64, 64, 2, 1}, "a: boxes");
  expect(a.strides_bytes == std::vector<int64_t>{384, 128, 38400}, "a: strides");
  expect(rows.sizes == std::vector<int64_t>{72, 192, 3} && rows.box == std::vector<int32_t>{64, 128, 1}, "b: boxes");
  expect(rows.strides_bytes == std::vector<int64_t>{144, 27648}, "b: strides");
}

}  // namespace

int main() {
  test_parts_of_one_activation();
  test_number_of_tiles();
  test_what_they_can_do();
  test_long_k();
  test_unread_products();
  test_product_beside_others();
  test_maps();
  return finish("small tiles");
}
