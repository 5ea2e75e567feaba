// Domains in their simplest form (planner/fuse/canonical_domain.h), and the vectors that operands move by.
#include <set>

#include "ir/program.h"
#include "planner/fuse/fused.h"
#include "planner/fuse/index_sums.h"
#include "support/graph_builder.h"
#include "support/test_host_util.h"

using namespace ark;
using namespace ark::ir;
using ark::planner::FusedGraph;
using ark::planner::FusedOp;
using ark::test::expect;
using ark::test::finish;
using ark::test::GraphBuilder;
using ark::test::number;

namespace {

using Sizes = std::vector<int64_t>;

ValueId strided(GraphBuilder& b, DType dtype, const Sizes& sizes, const Sizes& strides) {
  const ValueId id = b.input(dtype, sizes);
  std::vector<Size>& own = b.graph.values[static_cast<size_t>(id)].strides;
  own.clear();
  for (const int64_t stride : strides) own.push_back(number(stride));
  return id;
}

std::string domain(const FusedOp& op) {
  const abi::ProgramParams& p = op.op.record.params.program;
  std::string text;
  for (int d = 0; d < p.num_dims; ++d) text += cat(d > 0 ? " " : "", op.op.record.size[d]);
  return p.reduce_dims > 0 ? cat(text, " reduce ", p.reduce_dims) : text;
}
std::string vectors(const FusedOp& op) {
  std::string text;
  for (const abi::Operand& o : op.op.operands) text += cat(text.empty() ? "" : " ", int{o.vector});
  return text;
}
std::string strides(const FusedOp& op, size_t operand) {
  std::string text;
  for (int d = 0; d < op.op.record.params.program.num_dims; ++d)
    text += cat(d > 0 ? " " : "", op.op.operands[operand].stride[d]);
  return text;
}

FusedGraph fused(const GraphBuilder& b) { return planner::fuse(b.graph); }

void expect_text(const std::string& got, const std::string& wanted, const std::string& what) {
  expect(got == wanted, cat(what, ": got '", got, "', expected '", wanted, "'"));
}

/// The only op of a sum of inputs, whose output is contiguous.
FusedGraph sum(const Sizes& sizes, const std::vector<std::pair<DType, Sizes>>& inputs) {
  GraphBuilder b;
  ValueId total = -1;
  for (const auto& [dtype, own] : inputs) {
    const ValueId x = strided(b, dtype, sizes, own);
    total = total < 0 ? x : b.pointwise(Opcode::kAdd, {total, x}, DType::kBF16, sizes);
  }
  b.graph.outputs.push_back(inputs.size() > 1 ? total : b.pointwise(Opcode::kNeg, {total}, DType::kBF16, sizes));
  FusedGraph graph = fused(b);
  expect(graph.ops.size() == 1, cat(graph.ops.size(), " ops"));
  return graph;
}

void contiguous_dimensions_are_one() {
  constexpr DType kType = DType::kBF16;
  const FusedGraph flat = sum({7, 1, 5, 3}, {{kType, {15, 15, 3, 1}}, {kType, {15, 99, 3, 1}}});
  expect_text(domain(flat.ops[0]), "105", "contiguous");
  expect_text(vectors(flat.ops[0]), "8 8 8", "an odd total moves by vectors");
  const FusedGraph broadcast = sum({4, 6, 101}, {{kType, {606, 101, 1}}, {kType, {0, 0, 1}}, {kType, {0, 0, 0}}});
  expect_text(domain(broadcast.ops[0]), "24 101", "what is broadcast over both merges too");
  expect_text(strides(broadcast.ops[0], 1), "0 1", "a row");
  const FusedGraph padded = sum({4, 6, 8}, {{kType, {49, 8, 1}}});
  expect_text(domain(padded.ops[0]), "4 48", "rows of rows");
  const FusedGraph one = sum({1, 1}, {{kType, {1, 1}}});
  expect_text(domain(one.ops[0]), "1", "one element");
}

void odd_rows_have_vectors_where_they_are_aligned_alike() {
  constexpr DType kType = DType::kBF16, kFloat = DType::kF32;
  const FusedGraph row = sum({64, 101}, {{kType, {101, 1}}, {kType, {0, 1}}});
  expect_text(vectors(row.ops[0]), "8 1 8", "with a row that is broadcast");
  const FusedGraph padded = sum({64, 101}, {{kType, {104, 1}}, {kType, {109, 1}}});
  expect_text(vectors(padded.ops[0]), "1 8 8", "what is written decides; 109 rows are off as 101 are");
  const FusedGraph types = sum({64, 101}, {{kType, {101, 1}}, {kFloat, {101, 1}}, {kFloat, {104, 1}}});
  expect_text(vectors(types.ops[0]), "8 4 1 8", "vectors of 16 bytes");
  const FusedGraph even = sum({64, 104}, {{kType, {105, 1}}, {kType, {104, 1}}});
  expect_text(vectors(even.ops[0]), "1 8 8", "rows of whole vectors");
}

void the_written_layout_goes_innermost() {
  GraphBuilder b;
  const Sizes sizes = {6, 10, 14};
  const ValueId x = strided(b, DType::kF32, sizes, {140, 1, 10}), y = strided(b, DType::kF32, sizes, {140, 14, 1});
  const ValueId z = b.pointwise(Opcode::kAdd, {x, y}, DType::kF32, sizes);
  b.graph.values[static_cast<size_t>(z)].strides = {number(1), number(6), number(60)};
  b.graph.outputs.push_back(z);
  const FusedGraph graph = fused(b);
  expect_text(domain(graph.ops[0]), "14 10 6", "by the output's strides");
  expect_text(strides(graph.ops[0], 2), "60 6 1", "the output");
}

/// Sums over the middle dimension of what lies permuted: kept columns end in the contiguous one.
void reductions_keep_their_dimensions() {
  GraphBuilder b;
  const ValueId x = strided(b, DType::kF32, {5, 7, 9, 11}, {693, 99, 11, 1});
  const ValueId columns = b.value(DType::kF32, {9, 11}), rows = b.value(DType::kF32, {5, 7}),
                middle = b.value(DType::kF32, {5, 9, 11});
  b.node(OpKind::kReduce, {x}, {columns}).attrs.dims = {0, 1};
  b.node(OpKind::kReduce, {x}, {rows}).attrs.dims = {2, 3};
  b.node(OpKind::kReduce, {x}, {middle}).attrs.dims = {1};
  b.graph.outputs = {columns, rows, middle};
  std::multiset<std::string> domains;
  const FusedGraph graph = fused(b);
  for (const FusedOp& op : graph.ops) domains.insert(domain(op));
  expect(
      domains == std::multiset<std::string>{"35 99 reduce 1", "7 5 99 reduce 1", "35 99 reduce 1"},
      "reductions: " + [&] {
        std::string text;
        for (const std::string& d : domains) text += d + "; ";
        return text;
      }());
}

/// The place of a reduction counts along the dimensions as they stand.
void a_place_keeps_the_order() {
  const auto op_of = [](ReduceOp reduce) {
    GraphBuilder b;
    const ValueId x = strided(b, DType::kF32, {5, 9, 11}, {99, 1, 9});
    const ValueId y = b.value(reduce == ReduceOp::kSum ? DType::kF32 : DType::kI64, {5});
    Node& node = b.node(OpKind::kReduce, {x}, {y});
    node.attrs.dims = {1, 2};
    node.attrs.reduce = reduce;
    b.graph.outputs = {y};
    const FusedGraph graph = fused(b);
    return cat(domain(graph.ops[0]), ", ", strides(graph.ops[0], 0));
  };
  expect_text(op_of(ReduceOp::kSum), "5 99 reduce 1, 99 1", "a sum is walked as it lies");
  expect_text(op_of(ReduceOp::kArgMax), "5 9 11 reduce 2, 99 1 9", "a place is not");
}

/// The place in a stream of random numbers is that of the merged dimensions.
void indices_merge_with_their_dimensions() {
  GraphBuilder b;
  const Sizes sizes = {6, 5, 7};
  const ValueId seed = b.input(DType::kI64, {}), offset = b.input(DType::kI64, {}), x = b.input(DType::kF32, sizes),
                random = b.value(DType::kF32, sizes);
  b.node(OpKind::kRand, {seed, offset}, {random});
  b.graph.outputs.push_back(b.pointwise(Opcode::kMul, {x, random}, DType::kF32, sizes));
  const FusedGraph graph = fused(b);
  expect_text(domain(graph.ops[0]), "210", "a stream");
  int indices = 0, products = 0;
  for (const Instr& i : graph.programs[static_cast<size_t>(graph.ops[0].op.programs[0])].instrs) {
    indices += i.op == Opcode::kIndex;
    products += i.op == Opcode::kMul && i.dtype == DType::kI64;
  }
  expect(indices == 1 && products == 0, cat("a stream: ", indices, " indices, ", products, " products"));
}

/// x0 * 35 + x1 * 7 + x2 + 4 over (6, 5, 7), and x1 alone in another use.
void sums_of_indices() {
  Program p{.num_dims = 3};
  const auto add = [&](Instr i) {
    i.dtype = DType::kI64;
    p.instrs.push_back(i);
    return static_cast<int16_t>(p.instrs.size() - 1);
  };
  const auto times = [&](int16_t a, int64_t n) {
    return add({.op = Opcode::kMul, .a = add({.op = Opcode::kConst, .imm_int = n}), .b = a});
  };
  const auto plus = [&](int16_t a, int16_t b) { return add({.op = Opcode::kAdd, .a = a, .b = b}); };
  const int16_t x0 = add({.op = Opcode::kIndex, .aux = 0}), x1 = add({.op = Opcode::kIndex, .aux = 1}),
                x2 = add({.op = Opcode::kIndex, .aux = 2});
  const int16_t place = plus(plus(plus(times(x0, 35), times(x1, 7)), x2), add({.op = Opcode::kConst, .imm_int = 4}));
  add({.op = Opcode::kStore, .a = place, .operand = 0});
  {
    const planner::IndexSums sums(p);
    expect(sums.merges(0, 1, 5) && sums.merges(1, 2, 7), "all dimensions merge");
    expect(!sums.merges(0, 1, 6) && !sums.merges(0, 2, 7), "not with other sizes");
    const std::vector<Instr> one = sums.rewritten({0, 0, 0}, {2});
    const Instr& sum = one[one.size() - 2];
    expect(sum.op == Opcode::kAdd && one[static_cast<size_t>(sum.a)].op == Opcode::kIndex &&
               one[static_cast<size_t>(sum.b)].imm_int == 4,
           "x + 4");
  }
  add({.op = Opcode::kStore, .a = x1, .operand = 1});
  const planner::IndexSums sums(p);
  expect(!sums.merges(0, 1, 5) && !sums.merges(1, 2, 7), "a coordinate that is used alone keeps its dimension");
}

/// Rows that no vector divides need a program that does not count along them.
void programs_that_count_along_rows() {
  Program p{.num_dims = 2};
  p.instrs = {{.op = Opcode::kIndex, .dtype = DType::kI64, .aux = 0}};
  expect(has_free_rows(p), "a row's number");
  p.instrs[0].aux = 1;
  expect(!has_free_rows(p), "a place in the row");
}

}  // namespace

int main() {
  contiguous_dimensions_are_one();
  odd_rows_have_vectors_where_they_are_aligned_alike();
  the_written_layout_goes_innermost();
  reductions_keep_their_dimensions();
  a_place_keeps_the_order();
  indices_merge_with_their_dimensions();
  sums_of_indices();
  programs_that_count_along_rows();
  return finish("canonical domains");
}
