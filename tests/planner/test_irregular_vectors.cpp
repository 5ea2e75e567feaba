// Operands that an index or a predicate reaches, in tasks whose other operands begin off alignment: the vectors that
// plans give them, and what the verifier says of others. A task over rows begins its vectors where the operands that
// coordinates reach are aligned, and device code does not ask whether the others are (load_irregular).
#include <algorithm>

#include "support/check.h"
#include "support/graph_builder.h"
#include "support/verify_plans.h"

using namespace ark;
using namespace ark::test;

namespace {

struct Sizes {
  int64_t row = 64;         // elements that are read of each row
  int64_t offset = 1;       // of the rows' first element
  int64_t pitch = 65;       // from row to row
  int64_t line = 64;        // from line to line of the table
  int64_t line_offset = 0;  // of the first line
};

/// rows * table[map[index]], summed along the rows or, pointwise, as it is.
plan::Plan product_of_lines(const Sizes& s, bool sums, DType table_type = DType::kF32) {
  using enum DType;
  GraphBuilder b;
  const ValueId big = b.input(kF32, {40, s.pitch}), table = b.input(table_type, {30, s.line}),
                map = b.input(kI64, {20}), index = b.input(kI64, {40});
  const auto view = [&](ValueId of, DType type, int64_t rows, int64_t pitch, int64_t offset) {
    const ValueId part = b.value(type, {rows, s.row});
    ir::Value& value = b.graph.values[static_cast<size_t>(part)];
    value.strides = {number(pitch), number(1)};
    value.offset = number(offset);
    value.base = of;
    b.node(OpKind::kView, {of}, {part});
    return part;
  };
  const ValueId rows = view(big, kF32, 40, s.pitch, s.offset),
                lines = view(table, table_type, 30, s.line, s.line_offset);
  const ValueId mapped = b.value(kI64, {40}), column = b.value(kI64, {40, 1}), line = b.value(table_type, {40, s.row});
  b.node(OpKind::kIndexLoad, {map, index}, {mapped}).attrs.map = {-1};
  b.graph.values[static_cast<size_t>(column)].base = mapped;
  b.node(OpKind::kView, {mapped}, {column});
  b.node(OpKind::kIndexLoad, {lines, column}, {line}).attrs.map = {-1, 1};
  const ValueId product = b.pointwise(Opcode::kMul, {rows, line}, kF32, {40, s.row});
  const ValueId sum = b.value(kF32, {40});
  if (sums) b.node(OpKind::kReduce, {product}, {sum}).attrs.dims = {1};
  b.graph.outputs = {sums ? sum : product};
  return plan_of(b.graph, true, true);
}

/// The table as the only op reads it.
abi::Operand& table_of(plan::Plan& plan) {
  EXPECT_EQ(plan.ops.size(), size_t{1});
  for (abi::Operand& x : plan.ops.at(0).operands)
    if (x.slot != abi::kNoSlot && plan.buffers[x.slot].index == 1 &&
        plan.buffers[x.slot].kind == plan::BufferKind::kInput)
      return x;
  throw InternalError("no operand is the table");
}

int vector_of(const Sizes& sizes, bool sums, DType type = DType::kF32) {
  plan::Plan plan = product_of_lines(sizes, sums, type);
  return table_of(plan).vector;
}

void test_vectors() {
  EXPECT_EQ(vector_of({.offset = 0, .pitch = 64}, true), 4);  // all is aligned
  EXPECT_EQ(vector_of({.offset = 4, .pitch = 72}, true), 4);
  // rows of the other operand begin off alignment: so do the vectors
  EXPECT_EQ(vector_of({.offset = 1, .pitch = 65}, true), 1);
  EXPECT_EQ(vector_of({.offset = 1, .pitch = 68}, true), 1);
  EXPECT_EQ(vector_of({.offset = 0, .pitch = 65}, true), 1);
  EXPECT_EQ(vector_of({.offset = 2, .pitch = 66}, true), 2);
  EXPECT_EQ(vector_of({.offset = 4, .pitch = 72}, true, DType::kBF16), 4);  // aligned by four elements, not by eight
  // lines of the table that begin off alignment, or lie an odd number of elements apart
  for (const bool sums : {true, false}) {
    EXPECT_EQ(vector_of({.offset = 0, .pitch = 64, .line = 65}, sums), 1);
    EXPECT_EQ(vector_of({.offset = 0, .pitch = 64, .line = 68, .line_offset = 1}, sums), 1);
    EXPECT_EQ(vector_of({.offset = 0, .pitch = 64, .line = 66}, sums), 2);
  }
  EXPECT_EQ(vector_of({.row = 63, .offset = 0, .pitch = 63}, true), 1);
}

/// What the verifier says where the table has vectors of `vector`.
void must_fail(const Sizes& sizes, bool sums, int vector, const char* part) {
  plan::Plan plan = product_of_lines(sizes, sums);
  EXPECT_EQ(complaint(plan), "");
  table_of(plan).vector = static_cast<signed char>(vector);
  const std::string message = complaint(plan);
  if (message.find(part) == std::string::npos)
    test::fail(cat("expected \"", part, "\", got \"", message, '"'), __FILE__, __LINE__);
}

void test_verifier() {
  must_fail({.offset = 1, .pitch = 65}, true, 4, "which begin where operand 0 is aligned");
  must_fail({.offset = 2, .pitch = 66}, true, 4, "which begin where operand 0 is aligned");
  for (const bool sums : {true, false}) {
    must_fail({.offset = 0, .pitch = 64, .line = 65}, sums, 4, "its indices by 65 and 0");
    must_fail({.offset = 0, .pitch = 64, .line = 66}, sums, 4, "its indices by 66 and 0");
  }
  must_fail({.offset = 0, .pitch = 64, .line = 68, .line_offset = 1}, true, 4, "its rows begin off alignment");
  must_fail({.offset = 0, .pitch = 64, .line = 68, .line_offset = 1}, false, 4, "is aligned");
}

}  // namespace

int main() {
  test_vectors();
  test_verifier();
  return test::result("irregular vectors");
}
