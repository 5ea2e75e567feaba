// The verifier on records: single fields of buffers, operands, programs, maps and parameters that are wrong, and what
// it says of each.
#include <algorithm>
#include <functional>

#include "planner/verify/regions.h"
#include "support/check.h"
#include "support/verify_plans.h"

using namespace ark;
using namespace ark::test;

namespace {

/// A changed plan must be refused with these words.
void must_fail(const plan::Plan& plan, const char* part, const std::function<void(plan::Plan&)>& change) {
  plan::Plan damaged = plan;
  change(damaged);
  std::string message = complaint(damaged);
  if (message.find(part) == std::string::npos)
    test::fail(cat("expected \"", part, "\", got \"", message, '"'), __FILE__, __LINE__);
}

void damage_buffers(const plan::Plan& plan) {
  size_t arena = 0, input = 0;
  for (size_t i = 0; i < plan.buffers.size(); ++i) {
    // one without tensor maps, about which the verifier has more to say
    const bool mapped = std::ranges::any_of(plan.maps, [&](const plan::TensorMap& m) { return m.slot == i; });
    if (plan.buffers[i].kind == plan::BufferKind::kArena && plan.buffers[i].size_bytes > 0 && !mapped) arena = i;
    if (plan.buffers[i].kind == plan::BufferKind::kInput && plan.buffers[i].immutable) input = i;
  }
  must_fail(plan, "of an arena of", [&](plan::Plan& p) { p.arena_bytes = p.buffers[arena].arena_offset; });
  must_fail(plan, "which lives from op",
            [&](plan::Plan& p) { p.buffers[arena].last_op = p.buffers[arena].first_op - 1; });
  must_fail(plan, "touches bytes", [&](plan::Plan& p) { p.buffers[arena].size_bytes /= 2; });
  must_fail(plan, "ends at byte", [&](plan::Plan& p) { p.buffers[input].size_bytes -= 2; });
  must_fail(plan, "which is immutable", [&](plan::Plan& p) {
    for (plan::Buffer& b : p.buffers) b.immutable |= b.kind == plan::BufferKind::kOutput;
  });
  must_fail(plan, "which no op before it writes", [&](plan::Plan& p) {
    plan::Buffer copy = p.buffers[arena];
    copy.first_op = 0, copy.last_op = 1000;
    p.buffers.push_back(copy);
    for (plan::Op& op : p.ops) {
      std::vector<planner::OperandUse> uses = planner::read_uses(op, p.programs);
      for (size_t i = 0; i < uses.size(); ++i)
        if (uses[i].read && op.operands[i].slot == arena)
          op.operands[i].slot = static_cast<uint32_t>(p.buffers.size()) - 1;
    }
  });
}

/// The first op of a kind.
plan::Op& op_of(plan::Plan& p, abi::TaskKind kind) {
  return *std::find_if(p.ops.begin(), p.ops.end(), [&](const plan::Op& op) { return op.record.kind == kind; });
}

void damage_ops(const plan::Plan& plan) {
  using enum abi::TaskKind;
  must_fail(plan, "grid", [&](plan::Plan& p) { op_of(p, kMatmulTile).record.params.matmul.n += 128; });
  must_fail(plan, "elements, expected", [&](plan::Plan& p) { op_of(p, kRow).record.size[0] *= 2; });
  must_fail(plan, "the record", [&](plan::Plan& p) { op_of(p, kRow).record.params.program.num_dims = 1; });
  must_fail(plan, "is of kind", [&](plan::Plan& p) { op_of(p, kRow).record.kind = kPointwise; });
  must_fail(plan, "has operands",
            [&](plan::Plan& p) { op_of(p, kMatmulTile).record.params.matmul.first_operand += 7; });
  must_fail(plan, "kv heads", [&](plan::Plan& p) { op_of(p, kAttentionForward).record.params.attention.kv_heads = 0; });
  must_fail(plan, "columns of", [&](plan::Plan& p) {
    abi::AttentionParams& attention = op_of(p, kAttentionForward).record.params.attention;
    attention.head_dim = attention.value_dim = 136;
  });
  must_fail(plan, "in slot", [&](plan::Plan& p) { p.ops.back().operands[0].slot = 1000; });
}

void damage_programs(const plan::Plan& plan) {
  must_fail(plan, "uses a later instruction", [&](plan::Plan& p) {
    for (Program& program : p.programs)
      if (program.instrs.size() > 1) program.instrs[0].a = 1;
  });
  must_fail(plan, "unknown reduction", [&](plan::Plan& p) {
    for (Program& program : p.programs)
      for (Instr& instr : program.instrs)
        if (instr.op == Opcode::kReduce) instr.aux = 77;
  });
}

void damage_tables(const plan::Plan& plan) {
  must_fail(plan, "map", [&](plan::Plan& p) { p.maps[0].offset_bytes += 16; });
  must_fail(plan, "map", [&](plan::Plan& p) { p.maps[0].sizes[1] += 1; });
  must_fail(plan, "map", [&](plan::Plan& p) { std::swap(p.maps[0].slot, p.maps.back().slot); });
  must_fail(plan, "workers and", [&](plan::Plan& p) { p.lists.pop_back(); });
  must_fail(plan, "reaches counter", [&](plan::Plan& p) { p.num_counters = 1; });
  must_fail(plan, "fresh tensor", [&](plan::Plan& p) { p.outputs[0].fresh = 17; });
}

/// Two tiles of an op write the same bytes.
void test_within() {
  plan::Plan plan = plan_of(layers(1, 128, 64, 1, DType::kF32), false, false);
  for (plan::Op& op : plan.ops) {
    std::vector<planner::OperandUse> uses = planner::read_uses(op, plan.programs);
    if (planner::tiles_of(op.record) < 2 || op.record.kind != abi::TaskKind::kMatmulSimple) continue;
    for (size_t i = 0; i < uses.size(); ++i)
      if (uses[i].write) op.operands[i].stride[1] -= 1;  // rows overlap
    break;
  }
  std::string message = complaint(plan);
  if (message.find("writes what tile") == std::string::npos)
    test::fail("overlapping rows: got " + message, __FILE__, __LINE__);
}

/// Products of few tiles: what small tiles cannot do, maps of other sizes and of other boxes.
void test_small_tiles() {
  using enum abi::TaskKind;
  const plan::Plan plan = plan_of(layers(1, 128, 64, 1, DType::kBF16), true, true, 132);
  const auto params = [](plan::Plan& p) -> abi::MatmulTileParams& {
    return op_of(p, kMatmulTile).record.params.matmul;
  };
  plan::Plan same = plan;
  EXPECT_EQ(params(same).tile_m, abi::kSmallTile);
  EXPECT_EQ(complaint(plan), "");
  must_fail(plan, "tiles of 64 x 64, steps of 64", [&](plan::Plan& p) { params(p).tile_k = 64; });
  must_fail(plan, "pairs 64 apart", [&](plan::Plan& p) { params(p).pair_distance = 64; });
  must_fail(plan, "has other sizes than it", [&](plan::Plan& p) {
    plan::TensorMap& map = p.maps[static_cast<size_t>(params(p).map_a)];
    map.sizes = {params(p).k, params(p).m, 1};
    map.strides_bytes.erase(map.strides_bytes.begin() + 1);
    map.box = {64, 64, 1};
  });
  must_fail(plan, "has boxes of 64 64 1, expected 64 128 1",
            [&](plan::Plan& p) { p.maps[static_cast<size_t>(params(p).map_b)].box[1] = 64; });
}

/// Few rows and weights [k][n]: widths that have no room, maps that show something else.
void test_column_strips() {
  using enum abi::TaskKind;
  const plan::Plan plan = plan_of(layers(1, 8, 64, 1, DType::kBF16), true, true, 132);
  const auto params = [](plan::Plan& p) -> abi::MatmulRowsParams& { return op_of(p, kMatmulRows).record.params.rows; };
  const auto map = [&](plan::Plan& p) -> plan::TensorMap& { return p.maps[static_cast<size_t>(params(p).map[0])]; };
  plan::Plan same = plan;
  EXPECT_EQ(params(same).columns, 16);
  EXPECT_EQ(complaint(plan), "");
  must_fail(plan, "strips of 4 columns", [&](plan::Plan& p) { params(p).columns = 4; });
  must_fail(plan, "strips of 64 columns", [&](plan::Plan& p) { params(p).columns = 64; });
  must_fail(plan, "strips of 24 columns", [&](plan::Plan& p) { params(p).columns = 24; });
  must_fail(plan, "map -1 of", [&](plan::Plan& p) { params(p).map[0] = -1; });
  must_fail(plan, "has boxes of 32 256 1, expected 16 256 1", [&](plan::Plan& p) { map(p).box[0] = 32; });
  must_fail(plan, "has other sizes than it", [&](plan::Plan& p) { ++map(p).sizes[1]; });
  must_fail(plan, "bytes along dimension 1, expected", [&](plan::Plan& p) { map(p).strides_bytes[0] /= 2; });
  must_fail(plan, "in 5 windows of k, at most 4",
            [&](plan::Plan& p) { params(p).k = 4 * 16 * abi::kColumnSliceK + 8; });
  must_fail(plan, "in 2 windows of k, at most 1",
            [&](plan::Plan& p) { params(p).m = 16, params(p).k = 5120, params(p).columns = 8; });
  must_fail(plan, "17 rows", [&](plan::Plan& p) { params(p).m = 17, params(p).columns = 16; });
  must_fail(plan, "k of one row", [&](plan::Plan& p) { params(p).m = 1, params(p).k = abi::kMostColumnsOneRowK + 8; });
  must_fail(plan, "pairs 12 apart", [&](plan::Plan& p) { params(p).lanes = 2, params(p).pair_distance = 12; });
}

/// Gates and weights [k][n]: the second weight has a map of its own.
void test_gated_strips() {
  using enum abi::TaskKind;
  const plan::Plan plan = plan_of(gated_columns(8, 64, 96), true, true, 132);
  const auto params = [](plan::Plan& p) -> abi::MatmulRowsParams& { return op_of(p, kMatmulRows).record.params.rows; };
  plan::Plan same = plan;
  EXPECT(params(same).gated != 0 && params(same).columns == 16 && params(same).num_segments == 1);
  EXPECT_EQ(complaint(plan), "");
  must_fail(plan, "map -1 of", [&](plan::Plan& p) { params(p).map[1] = -1; });
  must_fail(plan, "shows slot", [&](plan::Plan& p) { params(p).map[1] = params(p).map[0]; });
  must_fail(plan, "strips of 32 columns", [&](plan::Plan& p) { params(p).columns = 32; });
  must_fail(plan, "in 2 windows of k, at most 1", [&](plan::Plan& p) { params(p).k = 16 * abi::kColumnSliceK + 8; });
  must_fail(plan, "has other sizes than it",
            [&](plan::Plan& p) { ++p.maps[static_cast<size_t>(params(p).map[1])].sizes[0]; });
}

/// A product's items, in the order of their units.
std::vector<abi::WorkItem*> items_of(plan::Plan& p, int op) {
  std::vector<abi::WorkItem*> items;
  for (auto& list : p.lists)
    for (abi::WorkItem& item : list)
      if (item.op == op) items.push_back(&item);
  std::ranges::sort(items, {}, &abi::WorkItem::first);
  return items;
}

/// Items of a product in strips: borders that move, a unit at a time, and items that are missing, come twice or are too
/// long. What is moved still covers all units once.
void damage_items(const plan::Plan& plan) {
  plan::Plan same = plan;
  EXPECT_EQ(complaint(plan), "");
  const abi::MatmulRowsParams& params = same.ops.at(0).record.params.rows;
  const int columns = params.columns;
  const size_t count = items_of(same, 0).size();
  EXPECT(count >= 2 && columns > 0);
  const auto move = [](plan::Plan& p, size_t border, int units) {
    const std::vector<abi::WorkItem*> items = items_of(p, 0);
    items[border]->count += units;
    items[border + 1]->first += units;
    items[border + 1]->count -= units;
  };
  for (size_t border = 0; border + 1 < count; ++border)
    for (const int units : {-1, 1, columns / 2})
      must_fail(plan, "within a strip of", [&](plan::Plan& p) { move(p, border, units); });
  const std::string twice = "is in the lists twice", missing = "is in no list";
  must_fail(plan, twice.c_str(), [&](plan::Plan& p) { items_of(p, 0)[0]->count += columns; });
  must_fail(plan, missing.c_str(), [&](plan::Plan& p) { items_of(p, 0)[0]->count -= 1; });
}

void test_items_of_strips() {
  for (const int m : {1, 8}) damage_items(plan_of(product_of_columns(m, 512, 200), true, true, 4));
  damage_items(plan_of(gated_columns(8, 64, 96), true, true, 3));
  // one row: sums of an item have room for 128 columns
  must_fail(plan_of(product_of_columns(1, 512, 1024), true, true, 4), "expected at most 128 columns",
            [](plan::Plan& p) {
              std::vector<abi::WorkItem*> items = items_of(p, 0);
              const int columns = p.ops[0].record.params.rows.columns;
              items[0]->count += columns, items[1]->first += columns, items[1]->count -= columns;
            });
}

/// Decode attention reads all values of a mask's range: of a table that has two alone it would read behind the end.
void test_range_of_two_values() {
  const plan::Plan plan = plan_of(decode_step(512, 1), true, true);
  const auto is_position = [](const plan::Buffer& b) {
    return b.kind == plan::BufferKind::kInput && b.size_bytes == 8;
  };
  const auto slot = std::ranges::find_if(plan.buffers, is_position) - plan.buffers.begin();
  const auto read_from = [slot](plan::Plan& p) {
    abi::Operand& range = op_of(p, abi::TaskKind::kAttentionDecode).operands[abi::AttentionOperand::kRange];
    EXPECT(range.slot != abi::kNoSlot);
    range.slot = static_cast<uint32_t>(slot);
  };
  must_fail(plan, "touches bytes 0 to 15 of slot", read_from);
  plan::Plan four = plan;
  read_from(four);
  four.buffers[static_cast<size_t>(slot)].size_bytes = 16;
  EXPECT_EQ(complaint(four), "");
  must_fail(plan, "do not lie together", [](plan::Plan& p) {
    op_of(p, abi::TaskKind::kAttentionDecode).operands[abi::AttentionOperand::kRange].stride[3] = 2;
  });
}

/// Sums of nothing have tiles and results: their grids are checked like others.
void test_sums_of_nothing() {
  for (const int64_t reduced : {0, 1}) {
    test::GraphBuilder b;
    const std::vector<int64_t> sizes = reduced == 0 ? std::vector<int64_t>{0, 8} : std::vector<int64_t>{8, 0};
    const ir::ValueId x = b.input(DType::kF32, sizes), y = b.value(DType::kF32, {8});
    b.node(ir::OpKind::kReduce, {x}, {y}).attrs.dims = {reduced};
    b.graph.outputs = {y};
    const plan::Plan plan = planner::make_plan(b.graph, {});
    EXPECT_EQ(complaint(plan), "");
    must_fail(plan, "tile 0", [](plan::Plan& p) { p.ops[0].record.params.program.tile = 0; });
    must_fail(plan, "rows 8 of 100", [](plan::Plan& p) { p.ops[0].record.params.program.row_size = 100; });
  }
}

}  // namespace

int main() {
  test_within();
  test_small_tiles();
  test_column_strips();
  test_gated_strips();
  test_items_of_strips();
  test_range_of_two_values();
  test_sums_of_nothing();
  const plan::Plan plan = plan_of(layers(2, 256, 64, 2, DType::kBF16), true, true);
  damage_buffers(plan);
  damage_ops(plan);
  damage_programs(plan);
  damage_tables(plan);
  must_fail(plan_of(layers(1, 64, 64, 1, DType::kF32), true, true), "fp32 tiles of 96 x 64",
            [](plan::Plan& p) { op_of(p, abi::TaskKind::kMatmulFloat).record.params.matmul.tile_m = 96; });
  return test::result("verify_records");
}
