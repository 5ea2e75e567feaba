// Row draws: which ops they become, and which damage of their records is refused.
#include <algorithm>

#include "device/abi/roles.h"
#include "support/check.h"
#include "support/model_graph.h"
#include "support/verify_plans.h"

using namespace ark;
using namespace ark::test;

namespace {

using X = abi::RowDrawOperand;
using P = abi::RowDrawParams;

plan::Plan draw_plan(int64_t rows, int64_t size, int workers = 132, bool needed = true) {
  GraphBuilder b;
  const ir::ValueId values = b.input(DType::kF32, {rows, size}), noise = b.input(DType::kF32, {rows, size}),
                    share = b.input(DType::kF32, {rows}), token = b.value(DType::kI64, {rows}),
                    best = b.value(DType::kF32, {rows});
  b.node(ir::OpKind::kRowDraw, {values, noise, share}, {token, best});
  b.graph.outputs = {token};
  if (needed) b.graph.outputs.push_back(best);
  return plan_of(b.graph, true, true, workers);
}

/// Tiles of each op.
std::string ops_of(const plan::Plan& plan) {
  std::string text;
  for (const plan::Op& op : plan.ops) {
    EXPECT(op.record.kind == abi::TaskKind::kRowDraw);
    text += cat(text.empty() ? "" : " ", op.record.grid[0], "x", op.record.grid[1]);
  }
  return text;
}

void test_ops() {
  EXPECT_EQ(ops_of(draw_plan(1, 128256)), "1x126 1x126 1x1");
  EXPECT_EQ(ops_of(draw_plan(8, 128256)), "8x16 8x16 8x1");
  EXPECT_EQ(ops_of(draw_plan(64, 128256)), "64x4 64x4 64x1");
  EXPECT_EQ(ops_of(draw_plan(50, 30000)), "50x1");
  EXPECT_EQ(ops_of(draw_plan(1, 8191)), "1x1");
  EXPECT_EQ(ops_of(draw_plan(1, 8192, 3)), "1x1");
  EXPECT_EQ(ops_of(draw_plan(1, abi::kSelectMost, 3000)), "1x128 1x128 1x1");  // as many lists as one tile reads
  EXPECT_EQ(ops_of(draw_plan(2, 300000, 3000)), "2x128 2x128 2x1");
  EXPECT_EQ(ops_of(draw_plan(1, 20002, 132, false)), "1x20 1x20 1x1");  // a sum that nobody reads
  for (const int64_t size : {8192, 8193, 20002, 33001, 128256, 151937})
    for (const int workers : {1, 7, 60, 132, 1000}) {
      const P p = draw_plan(1, size, workers).ops[0].record.params.row_draw;
      EXPECT(p.part % 4 == 0 && int64_t{p.part} * p.parts >= size && int64_t{p.part} * (p.parts - 1) < size);
      EXPECT(p.parts <= abi::kDrawMostParts);
    }
}

/// A product's scores and their noise, which depends on nothing: it is no stage between the two.
void test_noise_comes_beside() {
  Model b;
  const int64_t words = 32000, wide = 512;
  const ir::ValueId x = b.input(DType::kBF16, {1, wide}), weights = b.input(DType::kBF16, {wide, words}),
                    seed = b.input(DType::kI64, {}), share = b.input(DType::kF32, {1}),
                    scores = b.value(DType::kBF16, {1, words}), noise = b.value(DType::kF32, {1, words}),
                    token = b.value(DType::kI64, {1}), best = b.value(DType::kF32, {1});
  b.node(ir::OpKind::kMatmul, {x, weights}, {scores});
  b.node(ir::OpKind::kRand, {seed, seed}, {noise});
  b.node(ir::OpKind::kRowDraw, {b.cast(scores, DType::kF32), noise, share}, {token, best});
  b.graph.outputs = {token, best};
  const plan::Plan plan = plan_of(b.graph, true, true, 132);
  EXPECT_EQ(plan.ops.size(), size_t{5});
  int waiting = 0;
  for (const plan::Op& op : plan.ops) waiting += op.record.num_waits > 0;
  EXPECT_EQ(waiting, 3);
}

/// Of each op a worker has one tile at most: rows are not behind each other.
void test_tiles_are_spread() {
  for (const int64_t rows : {1, 8}) {
    const plan::Plan plan = draw_plan(rows, 128256);
    for (const auto& list : plan.lists) {
      std::vector<int> tiles(plan.ops.size());
      for (const abi::WorkItem& item : list) tiles[static_cast<size_t>(item.op)] += item.count;
      EXPECT(std::ranges::all_of(tiles, [](int n) { return n <= 1; }));
    }
  }
}

template <class Damage>
void refused(const plan::Plan& plan, size_t op, const char* what, const Damage& damage) {
  plan::Plan damaged = plan;
  damage(damaged.ops[op], damaged.ops[op].record.params.row_draw);
  const std::string message = complaint(damaged);
  if (message.find(what) == std::string::npos)
    test::fail(cat("op ", op, ": '", message, "' does not say '", what, "'"), __FILE__, __LINE__);
}

void test_damage() {
  const plan::Plan plan = draw_plan(2, 20002);
  EXPECT_EQ(complaint(plan), "");
  const auto lost = [&](size_t op, const char* what, int operand) {
    refused(plan, op, what, [&](plan::Op& o, P&) { o.operands[static_cast<size_t>(operand)].slot = abi::kNoSlot; });
  };
  for (const size_t op : {0, 1, 2}) {
    refused(plan, op, "parts of", [](plan::Op&, P& p) { p.part /= 2; });
    refused(plan, op, "parts of", [](plan::Op&, P& p) { p.part += 2; });
    refused(plan, op, "parts of", [](plan::Op&, P& p) { p.part = 0; });
    refused(plan, op, "parts of", [](plan::Op&, P& p) { --p.parts; });
    refused(plan, op, "at most", [](plan::Op&, P& p) { p.part = 4, p.parts = abi::kDrawMostParts + 1; });
    refused(plan, op, op == 2 ? "stage 3" : "operand 1", [](plan::Op&, P& p) { ++p.stage; });
    refused(plan, op, "vectors of", [](plan::Op&, P& p) { p.vector = 2; });
    refused(plan, op, op == 0 ? "vectors of" : "other values",
            [](plan::Op& o, P& p) { p.vector = 4, o.operands[X::kValues].offset = 1; });
    lost(op, "operand 0", X::kValues);
  }
  lost(0, "operand 1", X::kNoise), lost(2, "operand 1", X::kNoise);
  lost(1, "operand 2", X::kShare), lost(2, "operand 2", X::kShare);
  lost(2, "operand 3", X::kToken), lost(2, "operand 4", X::kBest);
  lost(0, "operand 6", X::kLists), lost(1, "operand 5", X::kListsBefore);
  lost(1, "operand 8", X::kMasses), lost(2, "operand 7", X::kMassesBefore);
  refused(plan, 0, "words", [](plan::Op& o, P&) { o.operands[X::kLists].stride[1] -= 2; });
  refused(plan, 1, "words", [](plan::Op& o, P&) { o.operands[X::kMasses].stride[1] -= 1; });
  refused(plan, 2, "another share", [](plan::Op& o, P&) { o.operands[X::kShare].offset += 1; });
  refused(plan, 2, "other values", [](plan::Op& o, P&) { o.operands[X::kValues].slot = o.operands[X::kNoise].slot; });
  refused(plan, 2, "other noise", [](plan::Op& o, P&) { o.operands[X::kNoise].slot = o.operands[X::kValues].slot; });
  refused(plan, 2, "other noise", [](plan::Op& o, P&) { o.operands[X::kNoise].offset += 4; });
  refused(plan, 2, "other noise", [](plan::Op& o, P&) { o.operands[X::kNoise].stride[0] = 0; });
  for (const size_t op : {1, 2}) {
    EXPECT(plan.ops[op].record.num_waits > 0);
    refused(plan, op, "race: ", [](plan::Op& o, P&) { o.record.num_waits = 0; });
  }
  refused(draw_plan(2, 300), 0, "stage", [](plan::Op&, P& p) { p.stage = 1; });
}

}  // namespace

int main() {
  test_ops();
  test_noise_comes_beside();
  test_tiles_are_spread();
  test_damage();
  return test::result("draw plans");
}
