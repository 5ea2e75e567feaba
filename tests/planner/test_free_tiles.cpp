// Tiles of ops beside others like them (planner/tile/beside.h, free_tile of flat_tiles.h): larger where nobody waits
// for them and they wait for nobody.
#include <cmath>
#include <random>

#include "device/abi/column_slots.h"
#include "planner/tile/beside.h"
#include "planner/tile/flat_tiles.h"
#include "support/tiled.h"

using namespace ark;
using namespace ark::test;
using planner::free_tile;
using planner::Joint;
using planner::kMostFreeElements;

namespace {

using Sizes = std::vector<int64_t>;

int64_t product(const Sizes& sizes) {
  int64_t n = 1;
  for (const int64_t size : sizes) n *= size;
  return n;
}

StorageId add_copy(Builder& b, const std::string& name, const Sizes& sizes, StorageId x = -1) {
  if (x < 0) x = b.input("x" + name, sizes);
  const StorageId y = b.storage("y" + name, sizes);
  b.program_op(TaskKind::kPointwise, name, sizes, 0, {b.dense_ref(x)}, {b.dense_ref(y)});
  return y;
}
/// With a value a row, so that the domain has two joint dimensions.
void add_rows(Builder& b, const std::string& name, const Sizes& sizes) {
  const StorageId x = b.input("x" + name, sizes), w = b.input("w" + name, {sizes[0]}), y = b.storage("y" + name, sizes);
  b.program_op(TaskKind::kPointwise, name, sizes, 0, {b.dense_ref(x), {w, {1, 0}}}, {b.dense_ref(y)});
}
StorageId add_sum(Builder& b, const std::string& name, const Sizes& sizes) {
  const StorageId x = b.input("x" + name, sizes), y = b.storage("y" + name, {sizes[1]}, DType::kF32);
  b.program_op(TaskKind::kColumn, name, sizes, 1, {b.dense_ref(x)}, {{y, {0, 1}}});
  return y;
}

template <class Add>
planner::Draft copies(int count, const Add& add) {
  Builder b;
  for (int i = 0; i < count; ++i) add(b, cat("op", i));
  return tiled(b);
}

std::vector<double> free_of(const Builder& b) { return planner::free_beside(b.graph, {}); }
std::vector<double> alike_of(const Builder& b) { return planner::alike_beside(b.graph, {}); }

void expect_near(const std::vector<double>& got, const std::vector<double>& wanted, const std::string& what) {
  expect_equal(got.size(), wanted.size(), what);
  for (size_t i = 0; i < got.size() && i < wanted.size(); ++i)
    expect(std::abs(got[i] - wanted[i]) < 1e-9, cat(what, ": op ", i, ": got ", got[i], ", expected ", wanted[i]));
}

void test_what_stands_beside() {
  Builder alone;
  add_copy(alone, "a", {64, 1024});
  expect_near(free_of(alone), {1}, "alone");
  Builder like;
  for (int i = 0; i < 3; ++i) add_copy(like, cat("op", i), {64, 1024});
  add_copy(like, "twice", {128, 1024});
  expect_near(free_of(like), {5, 5, 5, 2.5}, "by what the ops take");
  add_sum(like, "sum", {64, 1024});
  expect_near(free_of(like), {5, 5, 5, 2.5, 1}, "of one kind");
  expect(planner::beside_ops(like.graph, {})[4] > 5.9, "of all kinds");
  planner::Options own;
  own.share_tiles = false;
  expect_near(planner::alike_beside(like.graph, own), {1, 1, 1, 1, 1}, "tiles are not shared");
  expect_near(planner::free_beside(like.graph, own), {1, 1, 1, 1, 1}, "tiles are not shared, free ops");
  add_copy(like, "none", {0, 1024});
  expect_near(free_of(like), {5, 5, 5, 2.5, 1, 1}, "an op of nothing");
}

/// Two ops like others that stand beside them, one of which has to do with another op.
void test_not_free() {
  Builder b;
  const Sizes sizes{64, 1024};
  for (int i = 0; i < 4; ++i) add_copy(b, cat("op", i), sizes);
  const StorageId first = add_copy(b, "first", sizes);
  add_copy(b, "reads", sizes, first);
  add_copy(b, "other", sizes, add_copy(b, "first of another", sizes));
  // "first" and "reads" stand at other distances than the four
  expect_near(alike_of(b), {4, 4, 4, 4, 1, 2, 1, 2}, "results that are read are wanted early");
  expect_near(free_of(b), {4, 4, 4, 4, 1, 1, 1, 1}, "what reads results begins as soon as they are there");

  Builder written;
  const StorageId x = written.input("x", sizes, false);
  for (int i = 0; i < 4; ++i) add_copy(written, cat("op", i), sizes);
  add_copy(written, "reads", sizes, x);
  written.program_op(TaskKind::kPointwise, "overwrites", sizes, 0, {written.dense_ref(written.input("z", sizes))},
                     {written.dense_ref(x)});
  written.graph.ops.back().after = {4};
  const std::vector<double> free = free_of(written), alike = alike_of(written);
  expect_near({free[4], free[5]}, {1, 1}, "after another");
  expect_near({alike[0], free[0]}, {4, 4}, "beside one that is after another");

  Builder later;  // by `after` alone: all stand at the same distance but for it
  for (int i = 0; i < 4; ++i) add_copy(later, cat("op", i), sizes);
  for (int i = 2; i < 4; ++i) later.graph.ops[static_cast<size_t>(i)].after = {i - 2};
  expect_near(alike_of(later), {2, 2, 2, 2}, "two by two");
  expect_near(free_of(later), {2, 2, 1, 1}, "the later two are not free");
}

/// The same of operands that are read across: tiles of rows of blocks.
void test_transposed() {
  const Sizes sizes{8192, 4096};
  const auto add = [&](Builder& b, const std::string& name) {
    const StorageId x = b.input("x" + name, {sizes[1], sizes[0]}), y = b.storage("y" + name, sizes);
    b.program_op(TaskKind::kPointwise, name, sizes, 0, {{x, {1, sizes[0]}}}, {b.dense_ref(y)});
  };
  const int64_t alone = find(copies(1, add), "op0").record.params.program.tile;
  const int64_t beside = find(copies(4, add), "op0").record.params.program.tile;
  expect(alone < beside && beside <= kMostFreeElements, cat("4 beside each other: ", beside, ", alone ", alone));
}

/// Such ops have the tile that they have alone.
void test_keep_their_tiles() {
  const Sizes sizes{3840, 769};
  const int64_t own = find(copies(1, [&](Builder& b, const std::string& n) { add_copy(b, n, sizes); }), "op0")
                          .record.params.program.tile;
  const auto tile_of = [](const planner::Draft& draft, const std::string& name) {
    return find(draft, name).record.params.program.tile;
  };
  const planner::Draft pairs = copies(32, [&](Builder& b, const std::string& n) {
    add_copy(b, n + " reads", sizes, add_copy(b, n + " is read", sizes));
  });
  for (const char* name : {"op0 reads", "op0 is read", "op31 reads", "op31 is read"})
    expect_equal(tile_of(pairs, name), own, name);
  int32_t number = 0;
  const planner::Draft after = copies(32, [&](Builder& b, const std::string& n) {
    add_copy(b, n, sizes);
    if (number++ % 2 == 1) b.graph.ops.back().after = {number - 2};
  });
  expect(tile_of(after, "op0") > own, "the first of two may be larger");
  expect_equal(tile_of(after, "op1"), own, "after another");
  const planner::Draft free = copies(32, [&](Builder& b, const std::string& n) { add_copy(b, n, sizes); });
  expect(tile_of(free, "op0") > own, cat("32 beside each other: tiles of ", tile_of(free, "op0"), ", alone ", own));
}

/// Tiles of the op: all elements once, whole vectors where rows allow.
void check_tiles(const plan::Op& op, int64_t row, const std::string& what) {
  const abi::ProgramParams& p = op.record.params.program;
  int64_t total = 1;
  for (int d = 0; d < p.num_dims; ++d) total *= op.record.size[d];
  const int64_t tiles = int64_t{op.record.grid[0]} * op.record.grid[1] * op.record.grid[2];
  expect_equal(tiles, (total + p.tile - 1) / p.tile, what + ": tiles");
  expect(p.tile <= std::max(kMostFreeElements, 2 * planner::kMostFlatElements), cat(what, ": a tile of ", p.tile));
  if (p.tile < total) {
    expect(row == total || p.tile % row == 0 || row % p.tile == 0,
           cat(what, ": a tile of ", p.tile, " straddles rows"));
    expect((row % 8 != 0 && row != total) || p.tile % 8 == 0, cat(what, ": a tile of ", p.tile, ", no whole vectors"));
  }
}

void test_copies() {
  constexpr int64_t kPrimeRow = 1000003;
  const std::vector<Sizes> all = {{3840, 769}, {3840, 768},  {1, 1},     {1, 769},   {769, 1},       {0, 769},
                                  {769, 0},    {1009, 1013}, {2, 65537}, {65537, 2}, {131, 1 << 15}, {7, kPrimeRow}};
  for (const Sizes& sizes : all)
    for (const bool rows : {false, true}) {
      const auto add = [&](Builder& b, const std::string& name) {
        rows ? add_rows(b, name, sizes) : void(add_copy(b, name, sizes));
      };
      const std::string what = cat(sizes[0], " x ", sizes[1], rows ? ", a value a row" : "");
      const plan::Op alone = find(copies(1, add), "op0");
      const planner::Draft many = copies(32, add);
      const int64_t own = alone.record.params.program.tile, total = product(sizes);
      for (const FusedOp& op : many.graph.ops) {
        const int64_t tile = op.op.record.params.program.tile;
        if (!rows || sizes[1] != kPrimeRow)
          check_tiles(op.op, rows && sizes[0] > 1 && sizes[1] > 1 ? sizes[1] : total, what);
        expect(tile >= own, cat(what, ": a tile of ", tile, ", alone ", own));
        expect(tile == own || (tile <= kMostFreeElements && tile * 20 > own * 21), cat(what, ": a tile of ", tile));
        if (own >= total) expect_equal(tile, own, what + ": one tile");
        if (rows && sizes[1] == kPrimeRow)  // nothing that divides a row is a tile
          expect_equal(tile, own, what);
        else if (total >= 1 << 20)
          expect(tile > own, cat(what, ": a tile of ", tile, " as alone"));
      }
    }
}

struct Pieces {
  int64_t tiles = 0, columns = 0, rows = 0;  // of what reads the input
  size_t ops = 0;
};
/// Of the first of so many sums of columns.
Pieces pieces(int count, bool read, const Sizes& sizes = {3840, 769}) {
  const planner::Draft draft = copies(count, [&](Builder& b, const std::string& name) {
    const StorageId sum = add_sum(b, name, sizes);
    if (read) add_copy(b, "reads " + name, {sizes[1]}, sum);
  });
  Pieces found;
  int64_t summed = 0;
  for (const FusedOp& op : draft.graph.ops) {
    if (!op.op.name.starts_with("op0")) continue;
    ++found.ops;
    if (draft.graph.storages[op.op.operands[0].slot].input < 0) continue;
    const abi::ProgramParams& p = op.op.record.params.program;
    found.tiles += planner::num_tiles(op.op.record);
    found.columns = p.tile, found.rows = p.row_size;
    summed += p.num_rows * p.row_size;
    expect(p.tile >= p.num_rows || p.tile % 8 == 0, cat(count, " sums: tiles of ", p.tile, " columns"));
  }
  expect_equal(summed, product(sizes), cat(count, " sums: elements summed"));
  return found;
}

/// Sums of columns stand in no line for others: fewer, larger pieces than of one alone.
void test_column_sums() {
  const Pieces alone = pieces(1, false), some = pieces(4, false), many = pieces(32, false);
  expect(alone.ops > 1 && some.ops > 1, "few sums: parts");
  expect_equal(many.ops, size_t{1}, "32 sums: no parts");
  expect_equal(many.rows, int64_t{3840}, "32 sums: rows of a tile");
  expect(many.columns >= 128, cat("32 sums: tiles of ", many.columns, " columns"));
  expect(some.columns * some.rows > alone.columns * alone.rows,
         cat("4 sums: tiles of ", some.rows, " x ", some.columns, ", alone ", alone.rows, " x ", alone.columns));
  constexpr int64_t kWorkers = 132;
  expect(4 * some.tiles <= 2 * kWorkers, cat("4 sums: ", 4 * some.tiles, " tiles, two rounds are ", 2 * kWorkers));
  const Pieces read = pieces(1, true), all_read = pieces(32, true);
  expect_equal(all_read.columns, read.columns, "32 sums that are read: columns of a tile");
  expect_equal(all_read.rows, read.rows, "32 sums that are read: rows of a tile");
}

/// Rows off alignment: a tile has the columns of one round of slots, in which all threads have one.
void test_rounds_of_slots() {
  constexpr int kThreads = 256, kVector = 8;
  const auto slots = [](int64_t columns) {
    return abi::column_slots(static_cast<int>(columns), 1, kVector, kVector, kThreads);
  };
  const int64_t odd = pieces(10, false, {512, 50257}).columns;
  expect_equal(int64_t{slots(odd).columns}, odd, "odd rows: columns of a round");
  expect_equal(slots(odd).lanes * slots(odd).groups, kThreads, "odd rows: threads that have a slot");
  expect_equal(pieces(10, false, {512, 50256}).columns, int64_t{256}, "rows of whole vectors");
}

/// The verifier takes plans of such tiles.
void test_plans() {
  Builder b;
  const Sizes sizes{3840, 769};
  for (int i = 0; i < 32; ++i) {
    b.output(add_copy(b, cat("copy", i), sizes));
    b.output(add_sum(b, cat("sum", i), sizes));
  }
  const plan::Plan plan = planner::plan_fused(std::move(b.graph), {});
  expect_equal(plan.ops.size(), size_t{64}, "ops of the plan");
  int64_t large = 0;
  for (const plan::Op& op : plan.ops)
    large += op.record.kind == TaskKind::kPointwise && op.record.params.program.tile > 2 * planner::kMostFlatElements;
  expect_equal(large, int64_t{32}, "ops of large tiles");
}

/// The choice itself, of any domain.
void test_free_tile() {
  std::mt19937 random(5);
  const std::vector<int64_t> sizes = {1, 2, 7, 8, 49, 64, 769, 1000, 1024, 3136, 65537, 8 * 10007, 1 << 20};
  constexpr int64_t kTileCost = 8192;
  int larger = 0;
  for (int n = 0; n < 4000; ++n) {
    std::vector<Joint> joint(1 + random() % 3);
    for (Joint& j : joint) j = {sizes[random() % sizes.size()], 0};
    int64_t total = 1;
    for (const Joint& j : joint) total *= j.size;
    if (total > int64_t{1} << 34) continue;
    const int64_t workers = std::vector<int64_t>{1, 8, 132}[random() % 3],
                  own = planner::aligned_tile(joint, std::max<int64_t>(2048, random() % 32768), 1024);
    const double beside = std::vector<double>{0.5, 1, 1.5, 32, 1000}[random() % 5];
    const int64_t tile = free_tile(joint, own, beside, workers);
    std::string what = cat("a tile of ", own, " of");
    for (const Joint& j : joint) what += cat(" ", j.size);
    what += cat(", ", beside, " beside, ", workers, " workers: ", tile);
    if (beside <= 1 || total <= own) {
      expect_equal(tile, own, what);
      continue;
    }
    if (tile == own) continue;
    ++larger;
    expect(tile > own && tile <= kMostFreeElements, what);
    const auto cost = [&](int64_t one) {
      return std::ceil(double((total + one - 1) / one) * beside / double(workers) - 1e-6) * double(one + kTileCost);
    };
    expect(cost(tile) < 0.95 * cost(own) + 1, what + ": nothing is saved");
    // of some dimension a divisor, of the outermost any number
    int64_t inner = 1;
    size_t j = joint.size() - 1;
    for (; j > 0 && inner * joint[j].size <= tile && tile % (inner * joint[j].size) == 0; --j) inner *= joint[j].size;
    expect(tile % inner == 0 && (j == 0 || joint[j].size % (tile / inner) == 0), what + ": straddles");
    expect((joint.back().size % 8 != 0 && joint.size() > 1) || tile % 8 == 0, what + ": no whole vectors");
  }
  expect(larger > 500, cat(larger, " larger tiles"));
  expect_equal(free_tile({}, 1, 32, 132), int64_t{1}, "no dimensions");
  expect_equal(free_tile({{0, 0}}, 1, 32, 132), int64_t{1}, "no elements");
}

void test_turns() {
  expect_equal(planner::turns_of(0, 1, 132), int64_t{1}, "no tiles");
  expect_equal(planner::turns_of(132, 1, 132), int64_t{1}, "a tile a worker");
  expect_equal(planner::turns_of(133, 1, 132), int64_t{2}, "one more");
  expect_equal(planner::turns_of(44, 3.0000000001, 132), int64_t{1}, "rounding is no turn");
  expect_equal(planner::turns_of(132, 1.5, 132), int64_t{2}, "half a turn");
}

}  // namespace

int main() {
  test_what_stands_beside();
  test_not_free();
  test_keep_their_tiles();
  test_transposed();
  test_copies();
  test_column_sums();
  test_rounds_of_slots();
  test_plans();
  test_free_tile();
  test_turns();
  return finish("free tiles");
}
