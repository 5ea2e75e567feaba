// Stores of one value by the tiles of each batch are one store in the source; what only looks like them stays as it is.
#include <functional>
#include <string>
#include <vector>

#include "codegen/batch_stores.h"
#include "codegen/codegen.h"
#include "codegen/epilogue_ways.h"
#include "codegen/program_source.h"
#include "cuda_compile/plans.h"
#include "plan/operand_uses.h"
#include "planner/planner.h"
#include "support/check.h"
#include "support/exchange_graphs.h"

using namespace ark;
using cuda_compile::ProgramBuilder;

namespace {

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}
std::string source(const Program& program) { return codegen::program_source(program, 0, ""); }

/// relu(product + operand 0), stored in operand 1 + r where the batch is r: %0 and %1 what is added, %2 the sum, %3 the
/// value, %4 the batch, from %5 on number, predicate and store of each rank.
constexpr size_t kAdded = 1, kValue = 3, kBatch = 4, kFirst = 5;
size_t number_of(size_t rank) { return kFirst + rank * 3; }
size_t predicate_of(size_t rank) { return kFirst + rank * 3 + 1; }
size_t store_of(size_t rank) { return kFirst + rank * 3 + 2; }
Program by_batch(int world, DType type = DType::kBF16) {
  ProgramBuilder b(ProgramKind::kEpilogue, 3, 0, 1 + world);
  const int root = b.root(), added = b.load(0, type);
  const int value = b.op(Opcode::kRelu, b.op(Opcode::kAdd, root, added)), batch = b.index(0);
  for (int r = 0; r < world; ++r) {
    const int is_its = b.op(Opcode::kEq, batch, b.constant(r, DType::kI64), -1, DType::kBool);
    b.store(1 + r, type, value, false, -1, is_its);
  }
  return b.program;
}

/// One store, one rounding; neither predicates nor what they are made of.
void expect_one_store(const std::string& text, int programs = 1) {
  EXPECT_EQ(count(text, "store_by_batch<ByBatch, V>("), programs);
  for (const char* part : {"store_run<", "store_irregular<", "op::eq(", "= x[0];"}) EXPECT_EQ(count(text, part), 0);
}

void stores_are_joined() {
  for (int world = 2; world <= 8; ++world) {
    const Program program = by_batch(world);
    const std::string text = source(program);
    expect_one_store(text);
    EXPECT_EQ(count(text, "store_operand<"), 0);
    EXPECT_EQ(count(text, "narrow_vector("), 1);
    EXPECT_EQ(count(text, cat("using ByBatch = BatchStores<", world, ", 1, 2>;")), 1);
    EXPECT_EQ(count(text, "kLoads = 1u, kStores = 2u;"), 1);
    const codegen::EpilogueShape shape = codegen::epilogue_shape(program);
    EXPECT(shape.walks() && shape.walked == 0b11 && shape.stores == 0b10);
    EXPECT(shape.by_batch.count == world && shape.by_batch.first == 1 && shape.by_batch.rest == 2);
  }
  expect_one_store(source(by_batch(4, DType::kF32)));
  EXPECT_EQ(count(source(by_batch(4, DType::kF32)), "narrow<float>("), 1);
}

/// What it says of the operands is what plan::program_uses reads in the program.
void batches_are_those_of_the_plan() {
  Program program = by_batch(8);
  plan::Op op;
  op.record.kind = abi::TaskKind::kMatmulTile;
  op.operands.resize(9);
  std::vector<plan::OperandUse> uses(9);
  for (abi::Operand& o : op.operands) o.index_operand = -1;
  plan::program_uses(op, {program}, 0, 0, uses);
  const codegen::BatchStores stores = codegen::join_batch_stores(program);
  for (int batch = 0; batch < 8; ++batch) EXPECT_EQ(uses[static_cast<size_t>(stores.operand(batch))].batch, batch);
}

/// Rank 0's box is where the product would have been; another result is stored between it and the others.
void first_box_may_stand_apart() {
  ProgramBuilder b(ProgramKind::kEpilogue, 3, 0, 5);
  b.program.instrs = by_batch(3).instrs;
  for (const size_t rank : {1, 2}) b.program.instrs[store_of(rank)].operand = static_cast<int16_t>(2 + rank);
  b.store(2, DType::kBF16, kValue - 1);
  const std::string text = source(b.program);
  expect_one_store(text);
  EXPECT_EQ(count(text, "using ByBatch = BatchStores<3, 1, 3>;"), 1);
  EXPECT_EQ(count(text, "store_operand<V>(c, 2, x"), 1);
}

using Change = std::function<void(Program&)>;
Instr& at(Program& p, size_t i) { return p.instrs[i]; }

/// Every store is left, with its predicate.
void what_stays() {
  const std::vector<Change> changes = {
      [](Program& p) { at(p, number_of(0)).imm_int = 3; },
      [](Program& p) { at(p, number_of(1)).imm_int = 2; },
      [](Program& p) { std::swap(at(p, number_of(0)).imm_int, at(p, number_of(1)).imm_int); },
      [](Program& p) { at(p, number_of(0)).dtype = DType::kI32; },
      [](Program& p) { at(p, predicate_of(0)).op = Opcode::kNe; },
      [](Program& p) { at(p, kBatch).aux = 1; },              // by rows
      [](Program& p) { at(p, store_of(1)).a = kValue - 1; },  // another value
      [](Program& p) { at(p, store_of(1)).dtype = DType::kF32; },
      [](Program& p) { at(p, store_of(0)).b = kBatch; },  // by index
      [](Program& p) { at(p, store_of(0)).c = kBatch; },
      [](Program& p) { at(p, kAdded).operand = 1; },  // rank 0's box is read
      [](Program& p) { at(p, kAdded).operand = 2; },  // rank 1's
      [](Program& p) { std::swap(at(p, predicate_of(1)).a, at(p, predicate_of(1)).b); },
      [](Program& p) { at(p, number_of(1)) = {.op = Opcode::kParameter, .dtype = DType::kI64, .operand = 0}; }};
  for (const Change& change : changes) {
    Program program = by_batch(2);
    program.num_operands = 4;
    change(program);
    const std::string text = source(program);
    EXPECT_EQ(count(text, "store_by_batch<"), 0);
    EXPECT_EQ(count(text, "store_run<") + count(text, "store_irregular<"), 2);
    EXPECT_EQ(codegen::epilogue_shape(program).by_batch.count, 0);
  }
  Program alone = by_batch(1), pointwise = by_batch(4);
  EXPECT_EQ(count(source(alone), "store_run<"), 1);
  EXPECT_EQ(codegen::join_batch_stores(alone).count, 0);
  pointwise.kind = ProgramKind::kPointwise;
  EXPECT_EQ(codegen::join_batch_stores(pointwise).count, 0);
}

/// A break in the run leaves the stores behind it.
void the_rest_stays() {
  const std::vector<std::pair<Change, int>> changes = {
      {[](Program& p) { at(p, number_of(2)).imm_int = 5; }, 2},
      {[](Program& p) { at(p, store_of(3)).operand = 6; }, 3},
      {[](Program& p) { at(p, number_of(2)) = {.op = Opcode::kRoot, .dtype = DType::kI64}; }, 2}};
  for (const auto& [change, joined] : changes) {
    Program program = by_batch(4);
    program.num_operands = 7;
    change(program);
    const std::string text = source(program);
    EXPECT_EQ(count(text, "store_by_batch<"), 1);
    EXPECT_EQ(count(text, "store_run<") + count(text, "store_irregular<"), 4 - joined);
    EXPECT_EQ(codegen::join_batch_stores(program).count, joined);
  }
}

/// A product moves whole vectors where all boxes allow it.
void ways_of_boxes() {
  const Program program = by_batch(8);
  const codegen::EpilogueShape shape = codegen::epilogue_shape(program);
  plan::Op op;
  op.record.kind = abi::TaskKind::kMatmulTile;
  op.record.params.matmul.n = 512;
  op.operands.resize(9);
  for (abi::Operand& o : op.operands) {
    o.dtype = static_cast<short>(DType::kBF16);
    o.vector = 8;
    o.stride[1] = 512, o.stride[2] = 1;
  }
  EXPECT_EQ(codegen::epilogue_way(shape, op), abi::kWholeVectors);
  for (size_t box = 1; box <= 8; ++box) {
    plan::Op other = op;
    other.operands[box].vector = 2;
    EXPECT_EQ(codegen::epilogue_way(shape, other), abi::kTwoElements);
    other.operands[box].vector = 1;
    EXPECT_EQ(codegen::epilogue_way(shape, other), abi::kSingleElements);
    other.operands[box].vector = 8;
    other.operands[box].stride[1] = int64_t{1} << 27;
    EXPECT_EQ(codegen::epilogue_way(shape, other), abi::kSingleElements);
  }
}

/// The programs that the planner makes: results of relu(x @ w + bias) and of x @ w.
void products_as_planned() {
  for (const int world : {2, 3, 4, 5, 6, 7, 8}) {
    test::ExchangeBuilder b(world);
    const int64_t rows = 128 * world * 4, columns = 512;
    const auto product = [&] {
      return b.matmul(b.input(DType::kBF16, {rows, 64}), b.input(DType::kBF16, {64, columns}));
    };
    const ir::ValueId first = b.reduce_scatter(product()),
                      sum = b.binary(Opcode::kAdd, product(), b.input(DType::kBF16, {rows, columns}));
    planner::Options options;
    options.machine.num_workers = 4;
    const plan::Plan plan =
        planner::make_plan(b.finish({first, b.reduce_scatter(b.unary(Opcode::kRelu, sum))}, "scattered"), options);
    const std::string text = codegen::generate(plan, {}).text;
    EXPECT_EQ(count(text, "using ByBatch = "), 2);
    expect_one_store(text, 2);
    EXPECT_EQ(count(text, "kEpilogueWays = 1;"), 2);
  }
}

}  // namespace

int main() {
  stores_are_joined();
  batches_are_those_of_the_plan();
  first_box_may_stand_apart();
  what_stays();
  the_rest_stays();
  ways_of_boxes();
  products_as_planned();
  return test::result("batch_stores");
}
