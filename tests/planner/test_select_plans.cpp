// Row selects: which ops they become, and which damage of their records is refused.
#include <algorithm>
#include <cmath>

#include "device/abi/roles.h"
#include "support/check.h"
#include "support/model_graph.h"
#include "support/verify_plans.h"

using namespace ark;
using namespace ark::test;

namespace {

plan::Plan select_plan(int64_t rows, int64_t size, DType bound, int workers = 132) {
  GraphBuilder b;
  const ir::ValueId distance = b.input(DType::kF32, {rows, size}), limit = b.input(bound, {rows}),
                    out = b.value(DType::kI64, {rows});
  b.node(ir::OpKind::kRowSelect, {distance, limit}, {out});
  b.graph.outputs = {out};
  return plan_of(b.graph, true, true, workers);
}

/// Of distances below the maximum of the row, which is that of parts of it where rows are long.
plan::Plan values_plan(int64_t rows, int64_t size, bool needed_before = false, DType bound = DType::kF32) {
  Model b;
  const ir::ValueId values = b.input(DType::kF32, {rows, size}), out = b.value(DType::kI64, {rows}),
                    top = b.reduce(ReduceOp::kMax, values, {1}, true, DType::kF32),
                    distance = b.pointwise(Opcode::kSub, {top, values}, DType::kF32, {rows, size});
  ir::ValueId limit = -1;
  if (needed_before) {
    limit = b.reduce(ReduceOp::kMax, distance, {1}, false, DType::kF32);  // a share
  } else {
    limit = b.input(bound, {rows});
  }
  b.node(ir::OpKind::kRowSelect, {distance, limit}, {out});
  b.graph.outputs = {out};
  return plan_of(b.graph, true, true, 132);
}

/// A select by count, and one by mass of what it leaves (ark_torch/sampling.py); others are `far`.
plan::Plan cut_plan(int64_t rows, int64_t size, double far = -INFINITY) {
  Model b;
  const ir::ValueId values = b.input(DType::kF32, {rows, size}), count = b.input(DType::kI64, {rows}),
                    share = b.input(DType::kF32, {rows}), found = b.value(DType::kI64, {rows}),
                    cut = b.value(DType::kI64, {rows}), top = b.reduce(ReduceOp::kMax, values, {1}, true, DType::kF32),
                    distance = b.pointwise(Opcode::kSub, {top, values}, DType::kF32, {rows, size});
  const auto steps = [&](ir::ValueId x) {
    const ir::ValueId all = b.binary(Opcode::kMul, x, b.scalar(DType::kF32, abi::kSelectSteps));
    return b.cast(b.binary(Opcode::kMinimum, all, b.scalar(DType::kF32, abi::kSelectFarthest)), DType::kI64);
  };
  b.node(ir::OpKind::kRowSelect, {distance, count}, {found});
  const ir::ValueId near =
      b.pointwise(Opcode::kLe, {steps(distance), b.view(found, {rows, 1}, {1, 0})}, DType::kBool, {rows, size});
  const ir::ValueId left = b.scalar(DType::kF32, far);
  const ir::ValueId kept = b.pointwise(Opcode::kWhere, {near, values, left}, DType::kF32, {rows, size});
  b.node(ir::OpKind::kRowSelect, {b.pointwise(Opcode::kSub, {top, kept}, DType::kF32, {rows, size}), share}, {cut});
  b.graph.outputs = {found, cut};
  return plan_of(b.graph, true, true, 132);
}

/// Tiles of each op.
std::string ops_of(const plan::Plan& plan) {
  std::string text;
  for (const plan::Op& op : plan.ops) {
    EXPECT(op.record.kind == abi::TaskKind::kRowSelect);
    text += cat(text.empty() ? "" : " ", op.record.grid[0], "x", op.record.grid[1]);
  }
  return text;
}

void test_ops() {
  EXPECT_EQ(ops_of(select_plan(1, 128256, DType::kI64)), "1x126 1x126 1x1");
  EXPECT_EQ(ops_of(select_plan(8, 128256, DType::kF32)), "8x16 8x16 8x1");
  EXPECT_EQ(ops_of(select_plan(200, 128256, DType::kF32)), "200x4 200x4 200x1");  // of 32 064: masses fit no more
  EXPECT_EQ(ops_of(select_plan(50, 30000, DType::kI64)), "50x1");                 // two parts would not pay
  EXPECT_EQ(ops_of(select_plan(1, 8191, DType::kI64)), "1x1");
  EXPECT_EQ(ops_of(select_plan(1, 8192, DType::kI64)), "1x8 1x8 1x1");
  EXPECT_EQ(ops_of(select_plan(1, 8192, DType::kI64, 3)), "1x1");
  EXPECT_EQ(ops_of(select_plan(1, 1, DType::kF32)), "1x1");
  EXPECT_EQ(ops_of(select_plan(1, abi::kSelectMost, DType::kF32, 1)), "1x128 1x128 1x1");
  EXPECT_EQ(ops_of(select_plan(1, abi::kSelectMost, DType::kF32, 3000)), "1x1024 1x1024 1x1");
}

void test_parts_cover_rows() {
  for (const int64_t size : {8192, 8193, 20002, 33001, 128256, 151937})
    for (const int workers : {1, 7, 60, 132, 1000}) {
      const abi::RowSelectParams p = select_plan(1, size, DType::kI64, workers).ops[0].record.params.row_select;
      EXPECT(p.part % 4 == 0 && p.part <= abi::kSelectMostPart);
      EXPECT(int64_t{p.part} * p.parts >= size && int64_t{p.part} * (p.parts - 1) < size);
      EXPECT(p.parts <= std::max(workers, 5));
    }
}

template <class Damage>
void refused(const plan::Plan& plan, size_t op, const char* what, const Damage& damage) {
  plan::Plan damaged = plan;
  damage(damaged.ops[op], damaged.ops[op].record.params.row_select);
  const std::string message = complaint(damaged);
  EXPECT(!message.empty());
  if (message.find(what) == std::string::npos)
    test::fail(cat("op ", op, ": '", message, "' does not say '", what, "'"), __FILE__, __LINE__);
}

void test_damage() {
  using X = abi::RowSelectOperand;
  using P = abi::RowSelectParams;
  const plan::Plan plan = select_plan(2, 20002, DType::kF32);
  EXPECT_EQ(complaint(plan), "");
  for (const size_t op : {0, 1}) {
    refused(plan, op, "parts of", [](plan::Op&, P& p) { p.part /= 2; });
    refused(plan, op, "parts of", [](plan::Op&, P& p) { p.part = 2 * p.part; });
    refused(plan, op, "parts of", [](plan::Op&, P& p) { p.part += 2; });
    refused(plan, op, "parts of", [](plan::Op&, P& p) { p.part = 0; });
    refused(plan, op, "parts of", [](plan::Op&, P& p) { --p.parts; });
    refused(plan, op, "", [](plan::Op&, P& p) { ++p.round; });
    refused(plan, op, "operand 5", [](plan::Op& o, P&) { o.operands[X::kSums].slot = abi::kNoSlot; });
    refused(plan, op, "operand 0", [](plan::Op& o, P&) { o.operands[X::kDistance].slot = abi::kNoSlot; });
    refused(plan, op, "sums", [](plan::Op& o, P&) { o.operands[X::kSums].stride[1] -= 1; });
    refused(plan, op, "vectors of", [](plan::Op&, P& p) { p.vector = 2; });
    refused(plan, op, "vectors of", [](plan::Op& o, P& p) { p.vector = 4, o.operands[X::kDistance].offset = 1; });
  }
  refused(plan, 0, "at most", [](plan::Op&, P& p) { p.part = 4, p.parts = abi::kSelectMostParts + 1; });
  refused(plan, 1, "operand 1", [](plan::Op& o, P&) { o.operands[X::kBound].slot = abi::kNoSlot; });
  refused(plan, 1, "operand 1", [](plan::Op&, P& p) { p.by_mass = 0; });
  refused(plan, 2, "operand 4", [](plan::Op& o, P&) { o.operands[X::kStateBefore].slot = abi::kNoSlot; });
  refused(plan, 2, "round", [](plan::Op&, P& p) { p.round = 3; });
  refused(plan, 2, "operand 0", [](plan::Op& o, P&) { o.operands[X::kDistance].slot = abi::kNoSlot; });
  refused(plan, 2, "operand 2", [](plan::Op& o, P&) { o.operands[X::kOut].slot = abi::kNoSlot; });
  for (const size_t op : {1, 2}) {
    EXPECT(plan.ops[op].record.num_waits > 0);
    refused(plan, op, "", [](plan::Op& o, P&) { o.record.num_waits = 0; });
  }
  const plan::Plan whole = select_plan(2, 300, DType::kI64);
  refused(whole, 0, "round", [](plan::Op&, P& p) { p.round = 1; });
  refused(whole, 0, "operand 2", [](plan::Op& o, P&) { o.operands[X::kOut].slot = abi::kNoSlot; });
}

void test_values() {
  const auto tops = [](const plan::Plan& plan) {
    std::string text;
    for (const plan::Op& op : plan.ops) {
      if (!text.empty()) text += " ";
      text += op.record.kind == abi::TaskKind::kRowSelect ? cat("select ", op.record.params.row_select.tops) : "op";
    }
    return text;
  };
  EXPECT_EQ(tops(values_plan(1, 128256)), "op select 48 select 0 select 0");
  EXPECT_EQ(tops(values_plan(8, 128256)), "op select 16 select 0 select 0");
  EXPECT_EQ(tops(values_plan(8, 4096)), "op select 0");                               // a row is one worker's
  EXPECT(tops(values_plan(1, 128256, true)).find("select 48") == std::string::npos);  // its bound needs the distances
  const auto listed = [&](int64_t rows, int64_t size) { return tops(values_plan(rows, size, false, DType::kI64)); };
  EXPECT_EQ(listed(1, 128256), "op select 96 select 0");  // 96 x 1336, whole vectors; 128 x 1002 are none
  EXPECT_EQ(listed(8, 128256), "op select 96 select 0");
  EXPECT_EQ(listed(1, 50304), "op select 96 select 0");
  EXPECT_EQ(listed(1, 32000), "op select 125 select 0");
  EXPECT_EQ(listed(1, 151936), "op select 128 select 0");  // 128 x 1187: no other is better
  EXPECT_EQ(tops(values_plan(1, 50257, false, DType::kI64)), "op select 29 select 0 select 0");  // 29 x 1733
  EXPECT_EQ(listed(100, 128256).find("select 96"), std::string::npos);
  EXPECT_EQ(tops(cut_plan(1, 128256)), "op select 96 select 0");
  EXPECT_EQ(tops(cut_plan(8, 128256)), "op select 96 select 0");
  EXPECT(tops(cut_plan(1, 128256, -1e30)).ends_with("select 0 select 0 select 0"));  // what is left is not far away
}

/// Maxima of parts that are not all of the values: their ranks say nothing of these.
void test_other_maxima() {
  const auto lists = [](int64_t rows, int64_t size, int64_t first_row, int64_t first, int64_t end, int64_t top_row) {
    Model b;
    const ir::ValueId x = b.input(DType::kF32, {rows, size}), limit = b.input(DType::kI64, {1}),
                      of = b.view(x, {1, size}, {size, 1}, top_row * size),
                      values = b.view(x, {1, end - first}, {size, 1}, first_row * size + first),
                      top = b.reduce(ReduceOp::kMax, of, {1}, true, DType::kF32), out = b.value(DType::kI64, {1});
    b.node(ir::OpKind::kRowSelect, {b.pointwise(Opcode::kSub, {top, values}, DType::kF32, {1, end - first}), limit},
           {out});
    b.graph.outputs = {out};
    const plan::Plan plan = plan_of(b.graph, true, true, 132);
    EXPECT_EQ(complaint(plan), "");
    return std::ranges::any_of(plan.ops, [](const plan::Op& op) {
      return op.record.kind == abi::TaskKind::kRowSelect && op.record.params.row_select.listed != 0;
    });
  };
  EXPECT(lists(1, 128256, 0, 0, 128256, 0));
  EXPECT(lists(3, 128256, 1, 0, 128256, 1));
  EXPECT(!lists(1, 128256, 0, 0, 64128, 0));  // half of what the maxima are of
  EXPECT(!lists(1, 128256, 0, 64128, 128256, 0));
  EXPECT(!lists(2, 128256, 1, 0, 128256, 0));  // another row's
}

void test_damage_of_values() {
  using X = abi::RowSelectOperand;
  using P = abi::RowSelectParams;
  const plan::Plan plan = values_plan(2, 20000);
  EXPECT_EQ(complaint(plan), "");
  EXPECT_EQ(plan.ops.size(), size_t{4});
  EXPECT_EQ(plan.ops[1].record.params.row_select.vector, 4);
  refused(plan, 1, "operand 7", [](plan::Op&, P& p) { p.tops = 0; });
  refused(plan, 1, "operand 7", [](plan::Op& o, P&) { o.operands[X::kTops].slot = abi::kNoSlot; });
  refused(plan, 1, "operand 8", [](plan::Op& o, P&) { o.operands[X::kMade].slot = abi::kNoSlot; });
  refused(plan, 1, "operand 7", [](plan::Op& o, P&) { o.operands[X::kTops].dtype = o.operands[X::kSums].dtype; });
  refused(plan, 1, "", [](plan::Op&, P& p) { p.tops = 1000; });
  refused(plan, 1, "tops", [](plan::Op&, P& p) { p.tops = -1; });
  refused(plan, 1, "vectors of", [](plan::Op& o, P&) { o.operands[X::kMade].stride[1] = 2; });
  refused(plan, 1, "", [](plan::Op& o, P&) { o.record.num_waits = 0; });
  refused(plan, 1, "", [](plan::Op& o, P&) { o.operands[X::kMade].slot = o.operands[X::kTops].slot; });
  refused(plan, 2, "tops", [](plan::Op&, P& p) { p.tops = 4; });
}

void test_damage_of_lists() {
  using X = abi::RowSelectOperand;
  using P = abi::RowSelectParams;
  const plan::Plan plan = cut_plan(2, 128256);
  EXPECT_EQ(complaint(plan), "");
  EXPECT_EQ(plan.ops.size(), size_t{3});
  for (const size_t op : {1, 2}) {
    EXPECT_EQ(plan.ops[op].record.params.row_select.listed, 1);
    refused(plan, op, "operand 1", [](plan::Op& o, P&) { o.operands[X::kBound].slot = abi::kNoSlot; });
    refused(plan, op, "lists 2", [](plan::Op&, P& p) { p.listed = 2; });
    refused(plan, op, "lists 1", [](plan::Op&, P& p) { p.by_mass = 1; });
    refused(plan, op, "lists 1", [](plan::Op&, P& p) { p.round = 1; });
    refused(plan, op, "operand", [](plan::Op&, P& p) { p.listed = 0; });
    refused(plan, op, "", [](plan::Op& o, P&) { o.record.num_waits = 0; });
  }
  refused(plan, 1, "tops of lists", [](plan::Op&, P& p) { p.tops = 0; });
  refused(plan, 1, "at most", [](plan::Op&, P& p) { p.tops = abi::kSelectMostTops + 1; });
  refused(plan, 1, "operand 5", [](plan::Op& o, P&) { o.operands[X::kSums].slot = abi::kNoSlot; });
  refused(plan, 1, "sums", [](plan::Op& o, P&) { o.operands[X::kSums].stride[1] -= 1; });
  refused(plan, 1, "", [](plan::Op& o, P&) { o.operands[X::kSums].stride[1] = 32; });
  refused(plan, 2, " of op ", [](plan::Op&, P& p) { p.part += 4, p.parts = (p.size + p.part - 1) / p.part; });
  refused(plan, 2, " of op ", [](plan::Op&, P& p) { p.part /= 2, p.parts = (p.size + p.part - 1) / p.part; });
  refused(plan, 2, " of op ", [](plan::Op&, P& p) { p.size -= 4; });
  refused(plan, 2, " of op ", [](plan::Op& o, P& p) { p.rows = o.record.grid[0] = 1; });
  refused(plan, 2, "another bound", [](plan::Op& o, P&) { o.operands[X::kBound].offset = 1; });
  refused(plan, 2, "another bound", [](plan::Op& o, P&) { o.operands[X::kBound].stride[0] = 0; });
  refused(plan, 2, "operand 9", [](plan::Op& o, P&) { o.operands[X::kShare].slot = abi::kNoSlot; });
  refused(plan, 2, "", [](plan::Op& o, P& p) { p.listed = 0, o.operands[X::kBound].slot = abi::kNoSlot; });
  refused(plan, 2, "operand 9", [](plan::Op& o, P&) { o.operands[X::kShare].dtype = o.operands[X::kOut].dtype; });
  refused(plan, 2, "operand 10", [](plan::Op& o, P&) { o.operands[X::kCut].dtype = o.operands[X::kShare].dtype; });
  refused(plan, 2, "operand 9", [](plan::Op& o, P&) { o.operands[X::kCut].slot = abi::kNoSlot; });
  refused(plan, 2, "operand 0", [](plan::Op& o, P&) { o.operands[X::kDistance].slot = abi::kNoSlot; });
}

}  // namespace

int main() {
  test_damage_of_lists();
  test_ops();
  test_parts_cover_rows();
  test_damage();
  test_values();
  test_other_maxima();
  test_damage_of_values();
  return test::result("select plans");
}
