// Norms before few-row products: computed by the product's prologue, or by an op of rows where that takes less.
#include <algorithm>
#include <cmath>

#include "codegen/row_factor.h"
#include "planner/fuse/prologue_cost.h"
#include "support/check.h"
#include "support/exchange_graphs.h"
#include "support/verify_plans.h"

using namespace ark;
using namespace ark::test;

namespace {

planner::PrologueReads reads_of(int64_t count, DType dtype) {
  planner::PrologueReads reads;
  reads.add(dtype, count);
  return reads;
}

/// What the header says was measured, within a quarter.
void test_measured() {
  struct Case {
    int64_t m, k, tensors;
    double microseconds;
  };
  for (const Case& c : {Case{8, 8192, 4, 32}, Case{8, 2048, 2, 2.8}, Case{16, 2048, 2, 6}}) {
    const double got = 1e6 * planner::prologue_seconds({}, c.m, c.k, reads_of(c.tensors, DType::kBF16),
                                                       planner::RowReduction::kBefore);
    EXPECT(std::abs(got - c.microseconds) <= c.microseconds / 4);
  }
  EXPECT_EQ(planner::prologue_seconds({}, 1, 8192, reads_of(4, DType::kBF16), planner::RowReduction::kBefore), 0.0);
}

/// Registers are counted in bytes: half as many elements of 32 bits.
void test_types() {
  const auto cost = [](int64_t k, DType dtype) {
    return planner::prologue_seconds({}, 8, k, reads_of(2, dtype), planner::RowReduction::kBefore) /
           static_cast<double>(k);
  };
  EXPECT_EQ(cost(3584, DType::kBF16), cost(1792, DType::kF32));  // kept
  EXPECT(cost(3584 + 256, DType::kBF16) > cost(3584, DType::kBF16));
  EXPECT(cost(1792 + 256, DType::kF32) > cost(1792, DType::kF32));
}

int row_ops_of(ExchangeBuilder& b, ValueId normed, int64_t rows, int64_t width) {
  const ValueId narrow = b.pointwise(Opcode::kCast, {normed}, DType::kBF16, {rows, width});
  const ValueId y = b.linear(narrow, b.input(DType::kBF16, {64, width}));
  const plan::Plan plan = plan_of(b.finish({y}, "norm and product"), true, true, 132);
  return static_cast<int>(std::count_if(plan.ops.begin(), plan.ops.end(),
                                        [](const plan::Op& op) { return op.record.kind == abi::TaskKind::kRow; }));
}
int row_ops(int64_t rows, int64_t width, DType dtype) {
  ExchangeBuilder b(1);
  const ValueId normed = b.binary(Opcode::kMul, b.norm(b.input(dtype, {rows, width})), b.input(dtype, {width}));
  return row_ops_of(b, normed, rows, width);
}

/// The norm of a product's 16-bit result, computed in fp32: what is read has 16 bits.
void test_widened() {
  for (const int64_t rows : {2, 8}) {
    ExchangeBuilder b(1);
    const ValueId x = b.linear(b.input(DType::kBF16, {rows, 64}), b.input(DType::kBF16, {4096, 64}));
    const ValueId wide = b.pointwise(Opcode::kCast, {x}, DType::kF32, {rows, 4096});
    EXPECT_EQ(row_ops_of(b, b.norm(wide), rows, 4096), 0);
  }
}

/// The same with a bias: elements wait for the reduction.
int row_ops_with_bias(int64_t rows, int64_t width) {
  ExchangeBuilder b(1);
  const ValueId normed = b.norm(b.input(DType::kBF16, {rows, width}));
  return row_ops_of(b, b.binary(Opcode::kAdd, normed, b.input(DType::kBF16, {width})), rows, width);
}

/// Times 1 + weight.
int row_ops_above_one(int64_t rows, int64_t width) {
  ExchangeBuilder b(1);
  const ValueId weight = b.binary(Opcode::kAdd, b.input(DType::kBF16, {width}), b.full(1));
  const ValueId normed = b.norm(b.input(DType::kBF16, {rows, width}));
  return row_ops_of(b, b.binary(Opcode::kMul, normed, weight), rows, width);
}

/// Divided by a root in which a number is that the row is read with: no factor of reductions alone.
int row_ops_with_own_number(int64_t rows, int64_t width) {
  ExchangeBuilder b(1);
  const ValueId x = b.input(DType::kBF16, {rows, width}), number = b.input(DType::kBF16, {1});
  const ValueId sum = b.binary(Opcode::kAdd, b.row_sum(b.binary(Opcode::kMul, x, x), 1, true), number);
  return row_ops_of(b, b.binary(Opcode::kMul, x, b.unary(Opcode::kRsqrt, sum)), rows, width);
}

/// The program that the product gets has what the graph was said to have.
void test_agrees_with_code() {
  for (const bool bias : {false, true}) {
    ExchangeBuilder b(1);
    const ValueId normed = b.norm(b.input(DType::kBF16, {8, 2048})), row = b.input(DType::kBF16, {2048});
    const ValueId result = b.binary(bias ? Opcode::kAdd : Opcode::kMul, normed, row);
    const plan::Plan plan =
        plan_of(b.finish({b.linear(result, b.input(DType::kBF16, {64, 2048}))}, "norm"), true, true, 132);
    EXPECT_EQ(plan.ops.size(), 1u);
    const Program& prologue = plan.programs.at(static_cast<size_t>(plan.ops[0].record.params.rows.prologue));
    EXPECT_EQ(codegen::split_row_factor(prologue).has_value(), !bias);
  }
}

void test_choice() {
  for (const int64_t rows : {2, 5, 8}) {
    EXPECT_EQ(row_ops(rows, 8192, DType::kBF16), 0);  // their factor is left to the epilogue, squares to tensor cores
    EXPECT_EQ(row_ops_above_one(rows, 3072), 0);      // the factor alone
    EXPECT_EQ(row_ops_above_one(rows, 4096), 1);
    EXPECT_EQ(row_ops_with_bias(rows, 3072), 0);
    EXPECT_EQ(row_ops_with_bias(rows, 4096), 1);
    EXPECT_EQ(row_ops(rows, 1024, DType::kF32), 0);
    EXPECT_EQ(row_ops(rows, 5120, DType::kF32), 1);
  }
  EXPECT_EQ(row_ops(16, 8192, DType::kBF16), 0);
  EXPECT_EQ(row_ops_with_own_number(16, 8192), 1);
  EXPECT_EQ(row_ops(16, 12288, DType::kBF16), 1);
  EXPECT_EQ(row_ops(1, 4096, DType::kF32), 0);
}

}  // namespace

int main() {
  test_measured();
  test_types();
  test_choice();
  test_widened();
  test_agrees_with_code();
  return test::result("prologue_cost");
}
