// The table of task kinds (plan/kinds.h) against what its readers assume of it.
#include <set>
#include <string>

#include "plan/params.h"
#include "plan/plan.h"
#include "planner/extents.h"
#include "planner/verify/kinds/kinds.h"
#include "planner/verify/regions.h"
#include "support/check.h"

using namespace ark;
using plan::Axis;
using plan::Kind;

namespace {

void test_names() {
  std::set<std::string> names;
  for (const Kind& kind : plan::kKinds) EXPECT(names.insert(plan::name(kind.kind)).second);
  EXPECT_EQ(std::string(plan::name(abi::TaskKind::kAttentionBackwardQuery)), "attention_backward_query");
  EXPECT_EQ(std::string(plan::name(abi::TaskKind::kCount)), "unknown");
}

abi::OpRecord sample(const Kind& kind) {
  abi::OpRecord record{};
  record.kind = kind.kind;
  switch (kind.family) {
    case plan::Family::kProgram:
      break;
    case plan::Family::kRows:
      record.params.rows.num_units = 40;
      break;
    case plan::Family::kMatmul:
      record.params.matmul = {.batch = 2, .m = 300, .n = 130, .k = 70, .tile_m = 128, .tile_n = 128, .tile_k = 64};
      break;
    case plan::Family::kAttention:
      record.params.attention = {.batch = 2,
                                 .heads = 8,
                                 .kv_heads = 2,
                                 .queries = 300,
                                 .keys = 500,
                                 .head_dim = 64,
                                 .value_dim = 64,
                                 .parts = 3,
                                 .tile_q = 128,
                                 .tile_k = 128};
      break;
    case plan::Family::kMaskRange:
      record.params.mask_range = {.batch = 2, .heads = 8, .queries = 300, .keys = 500, .block = 128};
      break;
    case plan::Family::kScatterSum:
      record.params.scatter_sum = {.rows = 300, .columns = 130, .terms = 70, .tile_rows = 64, .lanes = 8, .vector = 4};
      break;
    case plan::Family::kRowSelect:
      record.params.row_select = {.rows = 7, .size = 130, .vector = 1, .parts = 3, .part = 44, .tops = 5};
      break;
    case plan::Family::kRowDraw:
      record.params.row_draw = {.rows = 7, .size = 130, .vector = 1, .parts = 3, .part = 44};
      break;
  }
  return record;
}

/// Every axis that the table names has an extent, every grid is what the kinds' comments in abi.h say.
void test_extents() {
  for (const Kind& kind : plan::kKinds) {
    const abi::OpRecord record = sample(kind);
    for (const plan::Role& role : kind.roles)
      for (int d = 0; role.axes[d] != Axis::kNone; ++d) EXPECT(planner::extent_of(record, role.axes[d]).size > 0);
    if (kind.family == plan::Family::kProgram) continue;
    const planner::Grid grid = planner::grid_of(record);
    const int64_t tiles = grid.tiles[0] * grid.tiles[1] * grid.tiles[2];
    switch (kind.kind) {
      case abi::TaskKind::kMatmulRows:
        EXPECT_EQ(tiles, 40);
        break;
      case abi::TaskKind::kAttentionDecode:
        EXPECT_EQ(tiles, 2 * 2 * 3);
        break;
      case abi::TaskKind::kAttentionBackward:
        EXPECT_EQ(tiles, 2 * 2 * 4);
        break;
      case abi::TaskKind::kScatterSum:
        EXPECT_EQ(tiles, 5 * 5);
        break;
      case abi::TaskKind::kRowSelect:
      case abi::TaskKind::kRowDraw:
        EXPECT_EQ(tiles, 7 * 3);
        break;
      default:
        EXPECT_EQ(tiles, kind.family == plan::Family::kMatmul ? 2 * 3 * 2 : 2 * 8 * 3);
    }
  }
}

void test_cuts() {
  const abi::OpRecord forward = sample(plan::kind_of(abi::TaskKind::kAttentionForward));
  const planner::Cut keys_of_head = planner::cut_of(forward, Axis::kKvHead);
  EXPECT_EQ(keys_of_head.coordinate, 1);
  EXPECT_EQ(keys_of_head.repeat, 4);  // query heads share a kv head
  const abi::OpRecord backward = sample(plan::kind_of(abi::TaskKind::kAttentionBackward));
  const planner::Cut heads = planner::cut_of(backward, Axis::kHead);
  EXPECT_EQ(heads.coordinate, 1);
  EXPECT_EQ(heads.block, 4);
  EXPECT_EQ(planner::cut_of(backward, Axis::kQuery).coordinate, -1);  // a key block sees all queries
}

/// The verifier's own reading of which operands a kind touches agrees with the table, though it shares no code.
void test_two_readings_agree() {
  for (const Kind& kind : plan::kKinds) {
    if (kind.roles.empty() || kind.family == plan::Family::kMatmul) continue;
    plan::Op op;
    op.record = sample(kind);
    op.record.params.attention.fresh_operand = -1;
    op.operands.resize(kind.roles.size());
    const auto table = plan::operand_uses(op, {}), own = planner::read_uses(op, {});
    for (size_t i = 0; i < kind.roles.size(); ++i) {
      const bool idle_gradient =
          kind.roles.data() == plan::roles::kGrad && i >= abi::AttentionGradOperand::kGradQ && !own[i].write;
      if (idle_gradient) continue;  // absent in this kind of the two
      EXPECT_EQ(table[i].read, own[i].read);
      EXPECT_EQ(table[i].write, own[i].write);
    }
  }
}

void test_unknown_kinds_are_refused() {
  EXPECT_THROW(InternalError, plan::kind_of(abi::TaskKind::kCount), "task kind");
  EXPECT_THROW(InternalError, plan::kind_of(static_cast<abi::TaskKind>(-1)), "task kind -1");
  EXPECT_THROW(InternalError, planner::reading_of(abi::TaskKind::kCount), "does not know");
}

}  // namespace

int main() {
  test_names();
  test_extents();
  test_cuts();
  test_two_readings_agree();
  test_unknown_kinds_are_refused();
  return test::result("kinds");
}
