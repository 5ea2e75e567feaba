// Residuals of tensor-parallel layers with few rows: added and stored by the product that sends next, added by the
// prologues before it.
#include <algorithm>
#include <set>

#include "planner/fuse/emit.h"
#include "support/check.h"
#include "support/exchange_graphs.h"
#include "support/verify_plans.h"

using namespace ark;
using namespace ark::test;

namespace {

struct Layers {
  int world = 2, count = 8;
  int64_t rows = 1, width = 64, own = 32;
  bool norm = true, returns_middle = false;
};

plan::Plan plan_of_layers(const Layers& s) {
  ExchangeBuilder b(s.world);
  ValueId x = b.input(DType::kF32, {s.rows, s.width}), middle = x;
  for (int l = 0; l < s.count; ++l) {
    ValueId w1 = b.input(DType::kF32, {s.own, s.width}), w2 = b.input(DType::kF32, {s.width, s.own});
    ValueId y = b.linear(s.norm ? b.norm(x) : x, w1);
    x = b.binary(Opcode::kAdd, x, b.all_reduce(b.linear(y, w2)));
    if (l == s.count / 2) middle = x;
  }
  std::vector<ValueId> outputs{x};
  if (s.returns_middle) outputs.push_back(middle);
  return plan_of(b.finish(outputs, cat(s.count, " layers, ", s.rows, " rows").c_str()), true, true, 6);
}

int count_kind(const plan::Plan& plan, abi::TaskKind kind) {
  return static_cast<int>(
      std::count_if(plan.ops.begin(), plan.ops.end(), [&](const plan::Op& op) { return op.record.kind == kind; }));
}
size_t most_operands(const plan::Plan& plan) {
  size_t most = 0;
  for (const plan::Op& op : plan.ops) most = std::max(most, op.operands.size());
  return most;
}

/// Two products a layer, none with the boxes of more than one exchange to add, however many layers there are.
void test_products_alone() {
  for (const bool norm : {true, false})
    for (const int64_t rows : {1, 4})
      for (const int world : {2, 4, 6})
        for (const int count : {3, 8, 30}) {
          const plan::Plan plan = plan_of_layers({.world = world, .count = count, .rows = rows, .norm = norm});
          EXPECT_EQ(count_kind(plan, abi::TaskKind::kMatmulRows), 2 * count);
          EXPECT_EQ(std::ssize(plan.ops), int64_t{2} * count + 1);  // the last sum is an op of its own
          EXPECT(most_operands(plan) <= static_cast<size_t>(2 * world + 4));
        }
}

/// The product that sends next multiplies the sum itself.
void test_read_by_sender() {
  for (const int64_t rows : {1, 4})
    for (const int count : {3, 8}) {
      ExchangeBuilder b(2);
      ValueId x = b.input(DType::kF32, {rows, 64});
      for (int l = 0; l < count; ++l)
        x = b.binary(Opcode::kAdd, x, b.all_reduce(b.linear(x, b.input(DType::kF32, {64, 64}))));
      const plan::Plan plan = plan_of(b.finish({x}, "square layers"), true, true, 6);
      EXPECT_EQ(count_kind(plan, abi::TaskKind::kMatmulRows), count);
    }
}

/// Where an op has no room for it, the sums are ops or lie in prologues, as before.
void test_no_room() {
  const plan::Plan plan = plan_of_layers({.world = 8, .count = 12});
  EXPECT(most_operands(plan) <= static_cast<size_t>(planner::kMaxOperands));
  EXPECT_EQ(count_kind(plan, abi::TaskKind::kMatmulRows), 24);
}

/// A sum that is returned is stored once, by whoever may.
void test_returned() {
  const plan::Plan plan = plan_of_layers({.returns_middle = true});
  EXPECT_EQ(std::ssize(plan.outputs), 2);
  EXPECT_EQ(count_kind(plan, abi::TaskKind::kMatmulRows), 16);
}

/// Layers in bf16 whose norms have weights; `dtype`: of the residual.
plan::Plan plan_of_weighted(int64_t rows, int64_t width, DType dtype) {
  ExchangeBuilder b(2);
  ValueId x = b.input(dtype, {rows, width});
  for (int l = 0; l < 4; ++l) {
    const ValueId normed = b.binary(Opcode::kMul, b.norm(x), b.input(dtype, {width}));
    const ValueId narrow = b.pointwise(Opcode::kCast, {normed}, DType::kBF16, {rows, width});
    const ValueId y = b.linear(narrow, b.input(DType::kBF16, {64, width}));
    const ValueId sent = b.all_reduce(b.linear(y, b.input(DType::kBF16, {width, 64})));
    x = b.binary(Opcode::kAdd, x, b.pointwise(Opcode::kCast, {sent}, dtype, {rows, width}));
  }
  return plan_of(b.finish({x}, "weighted layers"), true, true, 132);
}

/// Where a prologue cannot keep the boxes, the residual and the weight in registers, ops of rows norm and store the
/// sum.
void test_weights_of_norms() {
  const auto row_ops = [](int64_t rows, int64_t width, DType dtype) {
    return count_kind(plan_of_weighted(rows, width, dtype), abi::TaskKind::kRow);
  };
  for (const int64_t rows : {2, 8}) {
    EXPECT_EQ(row_ops(rows, 1792, DType::kBF16), 0);
    EXPECT_EQ(row_ops(rows, 2048, DType::kBF16), 3);  // the first norm reads no boxes
    EXPECT_EQ(row_ops(rows, 1152, DType::kF32), 0);
    EXPECT_EQ(row_ops(rows, 1536, DType::kF32), 3);  // as many tensors, more registers
  }
  EXPECT_EQ(row_ops(1, 2048, DType::kBF16), 0);
}

/// Tiles of many rows: the rows that read a sum store it.
void test_many_rows() {
  const plan::Plan plan = plan_of_layers({.count = 4, .rows = 64, .width = 128, .own = 64});
  EXPECT_EQ(count_kind(plan, abi::TaskKind::kMatmulRows), 0);
}

}  // namespace

int main() {
  test_products_alone();
  test_read_by_sender();
  test_no_room();
  test_returned();
  test_weights_of_norms();
  test_many_rows();
  return test::result("late_sums");
}
