// Generated sources: deterministic, free of sizes, only what the plan needs; malformed programs are refused.
#include <algorithm>
#include <cstring>
#include <string>

#include "base/check.h"
#include "codegen/codegen.h"
#include "codegen/program_source.h"
#include "cuda_compile/plans.h"
#include "planner/planner.h"
#include "support/check.h"
#include "support/graph_builder.h"

using namespace ark;
using cuda_compile::ProgramBuilder;

namespace {

plan::Plan pointwise_plan(int64_t size) {
  plan::Plan plan;
  ProgramBuilder b(ProgramKind::kPointwise, 2, 0, 3);
  const int x = b.load(0, DType::kBF16), y = b.load(1, DType::kF32);
  b.store(2, DType::kBF16, b.op(Opcode::kTanh, b.op(Opcode::kAdd, x, y)));
  plan.programs.push_back(b.program);
  plan::Op op;
  op.name = "add+tanh";
  op.record.kind = abi::TaskKind::kPointwise;
  op.record.size[0] = op.record.size[1] = size;
  op.record.params.program.tile = size;
  plan.ops.push_back(op);
  plan.buffers.resize(3);
  return plan;
}

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

template <class Error>
bool refuses(const plan::Plan& plan) {
  try {
    codegen::generate(plan, {});
  } catch (const Error&) {
    return true;
  }
  return false;
}

/// A column program that sums each of `number` operands of bf16.
Program column_sums(int number) {
  ProgramBuilder b(ProgramKind::kColumn, 2, 1, 2 * number);
  for (int i = 0; i < number; ++i)
    b.store(number + i, DType::kF32, b.reduce(ReduceOp::kSum, b.load(i, DType::kBF16)), true);
  return b.program;
}

void columns_of_many_sums_have_shorter_vectors() {
  for (const auto& [sums, vector] :
       {std::pair(1, 8), std::pair(2, 8), std::pair(3, 4), std::pair(5, 4), std::pair(6, 2)})
    EXPECT(contains(codegen::program_source(column_sums(sums), 0, ""), cat("kVector = ", vector, ",").c_str()));
}

void sizes_are_not_in_the_source() {
  const std::string a = codegen::generate(pointwise_plan(1237), {}).text,
                    b = codegen::generate(pointwise_plan(64), {}).text;
  EXPECT(a == b);
  EXPECT(!contains(a, "1237"));
}

/// Two products with weights, as in a decode step: `m` sequences, rows of `k` elements in the second.
std::string few_rows_source(int64_t m, int64_t k, DType dtype) {
  test::GraphBuilder b;
  const ir::ValueId x = b.input(dtype, {m, 512}), up = b.input(dtype, {512, k}), down = b.input(dtype, {k, 512});
  for (size_t weight : {1, 2}) {
    b.graph.immutable[weight] = true;
    ir::Value& w = b.graph.values[static_cast<size_t>(b.graph.inputs[weight])];  // [n][k], seen as [k][n]
    w.strides = {test::number(1), w.sizes[0]};
  }
  const ir::ValueId h = b.value(dtype, {m, k}), y = b.value(dtype, {m, 512});
  b.node(ir::OpKind::kMatmul, {x, up}, {h});
  const ir::ValueId relu = b.pointwise(Opcode::kRelu, {h}, dtype, {m, k});
  b.node(ir::OpKind::kMatmul, {relu, down}, {y});
  b.graph.outputs = {y};
  ir::verify(b.graph);
  return codegen::generate(planner::make_plan(b.graph, {}), {}).text;
}

/// How many rows there are is data from two on; one row keeps a form of its own, and so do nine to sixteen of 16 bits.
void few_rows_are_sizes() {
  for (const DType dtype : {DType::kBF16, DType::kF32})
    for (const int64_t k : {1024, 8192}) {
      const std::string two = few_rows_source(2, k, dtype);
      EXPECT(contains(two, "RowsForm0"));
      for (const int64_t m : {3, 4, 5, 7, 8}) EXPECT(few_rows_source(m, k, dtype) == two);
      EXPECT(few_rows_source(1, k, dtype) != two);
      if (dtype == DType::kF32) continue;
      const std::string nine = few_rows_source(9, k, dtype);
      for (const int64_t m : {10, 13, 16}) EXPECT(few_rows_source(m, k, dtype) == nine);
      EXPECT(nine != two && !contains(few_rows_source(17, k, dtype), "RowsForm0"));
    }
}

plan::Plan layers_of_few_rows(int layers) {
  test::GraphBuilder b;
  ir::ValueId x = b.input(DType::kBF16, {1, 512});
  for (int layer = 0; layer < layers; ++layer) {
    const ir::ValueId weight = b.input(DType::kBF16, {512, 512}), product = b.value(DType::kBF16, {1, 512});
    b.graph.immutable[static_cast<size_t>(layer + 1)] = true;
    b.graph.values[static_cast<size_t>(weight)].strides = {test::number(1), test::number(512)};
    b.node(ir::OpKind::kMatmul, {x, weight}, {product});
    x = b.pointwise(Opcode::kRelu, {product}, DType::kBF16, {1, 512});
  }
  b.graph.outputs = {x};
  ir::verify(b.graph);
  return planner::make_plan(b.graph, {});
}

/// Code that runs once in a launch is a function; code that every layer runs is part of the kernel's body, also where
/// only a later plan of the kernel has several.
void forms_of_one_op_are_called() {
  const char* const called = "return call<RowsTask<RowsForm1>>(consumer, task)";
  const char* const in_body = "return RowsTask<RowsForm1>::consume(consumer, task)";
  const plan::Plan three = layers_of_few_rows(3), four = layers_of_few_rows(4);
  const std::string text = codegen::generate(four, {}).text;
  EXPECT(contains(text, "return call<RowsTask<RowsForm0>>(consumer, task)"));  // reads the input
  EXPECT(contains(text, in_body));                                             // the layers in the middle
  EXPECT(contains(text, "return call<RowsTask<RowsForm2>>(consumer, task)"));  // writes the output
  EXPECT(!contains(text, "RowsForm3"));
  EXPECT(contains(codegen::generate(three, {}).text, called));
  const plan::Plan* const plans[] = {&three, &four};
  EXPECT(contains(codegen::generate(codegen::make_kernel(plans), {}).text, in_body));
}

void only_what_is_needed() {
  const codegen::Source source = codegen::generate(pointwise_plan(64), {});
  EXPECT(contains(source.text, "device/program/pointwise.cuh"));
  EXPECT(!contains(source.text, "matmul"));
  EXPECT(!contains(source.text, "patch_tensor_maps"));
  EXPECT(contains(source.text, "// add+tanh"));
  EXPECT(contains(source.text, "op::tanh_fast"));  // the result is rounded to bf16
  EXPECT(contains(source.text, "call_without_pages<Pointwise<OneProgram<Program0>>>(consumer, task)"));
  EXPECT(!contains(source.text, "@"));
  EXPECT(source.slot_capacity == 64);
  EXPECT(contains(codegen::generate(pointwise_plan(64), {.trace = true}).text, "#define ARK_TRACE 1"));
}

void accurate_functions_for_fp32() {
  plan::Plan plan = pointwise_plan(64);
  plan.programs[0].instrs.back().dtype = DType::kF32;
  EXPECT(!contains(codegen::generate(plan, {}).text, "tanh_fast"));
}

void slots_choose_the_capacity() {
  plan::Plan plan = pointwise_plan(64);
  plan.buffers.resize(65);
  EXPECT(codegen::generate(plan, {}).slot_capacity == 512);
  plan.buffers.resize(3841);
  EXPECT(refuses<UnsupportedError>(plan));
}

void malformed_programs() {
  plan::Plan plan = pointwise_plan(64);
  plan.programs[0].instrs[2].a = 7;  // not an earlier instruction
  EXPECT(refuses<InternalError>(plan));
  plan = pointwise_plan(64);
  plan.programs[0].instrs[0].operand = 3;  // of 3
  EXPECT(refuses<InternalError>(plan));
  plan = pointwise_plan(64);
  plan.programs[0].instrs[2].op = Opcode::kReduce;  // outside a row
  EXPECT(refuses<InternalError>(plan));
  plan = pointwise_plan(64);
  plan.ops[0].record.params.program.program = 1;  // of 1
  EXPECT(refuses<InternalError>(plan));
}

/// A row task (sum of each row) over rows of so many elements.
plan::Plan row_plan(int64_t rows, int64_t length) {
  test::GraphBuilder b;
  const ir::ValueId x = b.input(DType::kF32, {rows, length}),
                    exp = b.pointwise(Opcode::kExp, {x}, DType::kF32, {rows, length}),
                    sum = b.value(DType::kF32, {rows, 1});
  ir::Node& node = b.node(ir::OpKind::kReduce, {exp}, {sum});
  node.attrs.dims = {1};
  node.attrs.keepdim = true;
  b.graph.outputs.push_back(b.pointwise(Opcode::kDiv, {exp, sum}, DType::kF32, {rows, length}));
  ir::verify(b.graph);
  return planner::make_plan(b.graph, {});
}

abi::i32 packed_program(const plan::Plan& plan, const plan::KernelNumbers& numbers) {
  const plan::Packed packed = plan::pack(plan, numbers);
  abi::OpRecord record;
  std::memcpy(&record, packed.records.data(), sizeof record);
  return record.params.program.program;
}

void kernels_are_shared() {
  const plan::Plan tanh = pointwise_plan(64);
  plan::Plan exp = pointwise_plan(128);
  exp.programs[0].instrs[3].op = Opcode::kExp;
  const plan::Plan* const plans[] = {&tanh, &exp};
  const codegen::Kernel both = codegen::make_kernel(plans), one = codegen::make_kernel({plans, 1});
  EXPECT(codegen::generate(one, {}).text == codegen::generate(tanh, {}).text);
  EXPECT(both.code.size() == 2 && codegen::find_numbers(both, tanh)->program[0] == 0);
  const auto numbers = codegen::find_numbers(both, exp);
  EXPECT(numbers.has_value() && both.code[static_cast<size_t>(numbers->program[0])].program == exp.programs[0]);
  EXPECT(packed_program(exp, *numbers) == 1 && packed_program(exp, {}) == 0);
  EXPECT(!codegen::find_numbers(one, exp).has_value());
  const codegen::Kernel more = codegen::extended(one, exp);
  EXPECT(codegen::find_numbers(more, exp)->program[0] == 1 && codegen::find_numbers(more, tanh)->program[0] == 0);
  plan::Plan slots = tanh;
  slots.buffers.resize(100);
  EXPECT(!codegen::find_numbers(both, slots).has_value());
}

/// x [256, 512] @ w [512, columns] + bias, in bf16.
plan::Plan tile_plan(int64_t columns, bool bias_is_strided = false) {
  test::GraphBuilder b;
  const int64_t step = bias_is_strided ? 2 : 1;
  const ir::ValueId x = b.input(DType::kBF16, {256, 512}), weight = b.input(DType::kBF16, {512, columns}),
                    bias = b.input(DType::kBF16, {columns}), product = b.value(DType::kBF16, {256, columns});
  b.graph.values[static_cast<size_t>(weight)].strides = {test::number(1), test::number(512)};
  b.graph.values[static_cast<size_t>(bias)].strides = {test::number(step)};
  b.node(ir::OpKind::kMatmul, {x, weight}, {product});
  const ir::ValueId spread = b.value(DType::kBF16, {256, columns}, bias);
  b.graph.values[static_cast<size_t>(spread)].strides = {test::number(0), test::number(step)};
  b.node(ir::OpKind::kView, {bias}, {spread});
  b.graph.outputs = {b.pointwise(Opcode::kAdd, {product, spread}, DType::kBF16, {256, columns})};
  ir::verify(b.graph);
  return planner::make_plan(b.graph, {});
}

/// A kernel has the ways of moving vectors that its products take; one that takes another does not fit it.
void ways_of_epilogues() {
  const plan::Plan whole = tile_plan(512), pairs = tile_plan(514), odd = tile_plan(515), spaced = tile_plan(512, true);
  const auto ways = [](const plan::Plan& plan) {
    const std::string text = codegen::generate(plan, {}).text;
    const size_t at = text.find("kEpilogueWays = ");
    return at == std::string::npos ? 0 : std::stoi(text.substr(at + 16));
  };
  EXPECT_EQ(ways(whole), 1);
  EXPECT_EQ(ways(pairs), 2);
  EXPECT_EQ(ways(odd), 4);
  EXPECT_EQ(ways(spaced), 4);
  const plan::Plan* const plans[] = {&whole, &pairs, &odd};
  const codegen::Kernel one = codegen::make_kernel({plans, 1}), two = codegen::make_kernel({plans, 2}),
                        all = codegen::make_kernel(plans);
  EXPECT(codegen::find_numbers(one, whole) && !codegen::find_numbers(one, pairs) && !codegen::find_numbers(one, odd));
  EXPECT(codegen::find_numbers(two, whole) && codegen::find_numbers(two, pairs) && !codegen::find_numbers(two, odd));
  for (const plan::Plan* plan : plans) EXPECT(codegen::find_numbers(all, *plan).has_value());
  EXPECT(contains(codegen::generate(all, {}).text, "kEpilogueWays = 7;"));
  const codegen::Kernel more = codegen::extended(one, odd);
  EXPECT(codegen::find_numbers(more, whole) && codegen::find_numbers(more, odd) && codegen::find_numbers(more, pairs));
}

/// x + a value per row, `pitch` elements between rows of x and `value_stride` between their values.
plan::Plan row_values_plan(int64_t rows, int64_t length, int64_t pitch, int64_t value_stride = 1) {
  ProgramBuilder b(ProgramKind::kPointwise, 2, 0, 3);
  b.store(2, DType::kBF16, b.op(Opcode::kAdd, b.load(0, DType::kBF16), b.load(1, DType::kBF16)));
  plan::Plan p;
  p.programs.push_back(b.program);
  plan::Op op;
  op.record.kind = abi::TaskKind::kPointwise;
  op.record.size[0] = rows, op.record.size[1] = length;
  const int64_t strides[3][2] = {{pitch, 1}, {value_stride, 0}, {length, 1}};
  for (const auto& stride : strides) {
    abi::Operand operand{};
    operand.dtype = static_cast<short>(DType::kBF16);
    operand.index_operand = -1;
    std::copy(stride, stride + 2, operand.stride);
    op.operands.push_back(operand);
  }
  p.ops.push_back(op);
  return p;
}

/// Which operands are contiguous over the whole domain is code, sizes are not.
void flat_operands_are_in_the_source() {
  const plan::Plan flat = row_values_plan(33, 49, 49), padded = row_values_plan(33, 49, 56);
  const plan::Plan* const plans[] = {&flat};
  const codegen::Kernel one = codegen::make_kernel(plans);
  EXPECT(one.code[0].flat == 0b101 && one.code[0].broadcast == 0b010);
  for (const int64_t length : {1, 7, 48, 50257}) {
    EXPECT(codegen::find_numbers(one, row_values_plan(20, length, length)).has_value());
    EXPECT(codegen::find_numbers(one, row_values_plan(1, length, 3 * length)).has_value());  // one row
    EXPECT(codegen::find_numbers(one, row_values_plan(0, length, length)).has_value());
  }
  EXPECT(!codegen::find_numbers(one, padded).has_value());
  const codegen::Kernel more = codegen::extended(one, padded);
  EXPECT(codegen::find_numbers(more, padded)->program[0] == 1 && codegen::find_numbers(more, flat)->program[0] == 0);
  EXPECT(more.code[1].flat == 0b100);
  const plan::Plan short_rows = row_values_plan(33, 1, 1);  // everything is flat, what does not count is not code
  const plan::Plan* const of_short[] = {&short_rows};
  EXPECT(codegen::find_numbers(codegen::make_kernel(of_short), flat).has_value());
  const plan::Plan far = row_values_plan(1 << 20, 49, 49, 4096);  // values further apart than 32 bits tell
  EXPECT(codegen::extended(one, far).code[1].flat == 0);
  const auto is_flat = [](const plan::Plan& plan) {
    return contains(codegen::generate(plan, {}).text, "kFlat = true");
  };
  EXPECT(is_flat(flat) && is_flat(padded) && !is_flat(far));
}

plan::Plan mask_range_plan(DType dtype) {
  plan::Plan plan = pointwise_plan(64);
  plan::Op op;
  op.name = "mask_range";
  op.record.kind = abi::TaskKind::kMaskRange;
  op.record.params.mask_range.dtype = static_cast<int>(dtype);
  plan.ops.push_back(op);
  return plan;
}

/// A kernel has code for the types of its own masks; masks of integers are read as bool.
void types_of_masks() {
  const auto named = [](DType dtype) { return cat("kMaskTypes = ", 1u << static_cast<int>(dtype), ";"); };
  const auto source = [](DType dtype) { return codegen::generate(mask_range_plan(dtype), {}).text; };
  for (const DType dtype : {DType::kBool, DType::kF16, DType::kBF16, DType::kF32, DType::kF64})
    EXPECT(contains(source(dtype), named(dtype).c_str()));
  EXPECT(contains(source(DType::kU8), named(DType::kBool).c_str()));
  EXPECT(!contains(codegen::generate(pointwise_plan(64), {}).text, "kMaskTypes"));
  const plan::Plan flags = mask_range_plan(DType::kBool), added = mask_range_plan(DType::kBF16);
  const plan::Plan* const plans[] = {&flags};
  const codegen::Kernel one = codegen::make_kernel(plans), more = codegen::extended(one, added);
  EXPECT(codegen::find_numbers(one, flags) && !codegen::find_numbers(one, added));
  EXPECT(codegen::find_numbers(more, flags) && codegen::find_numbers(more, added));
}

/// Lengths that the first form of rows does not serve get one that serves them all; code never serves what it cannot.
void rows_of_all_lengths() {
  std::vector<plan::Plan> plans;
  for (const int64_t length : {1024, 1000, 37, 4096, 20000, 3}) plans.push_back(row_plan(256, length));
  std::vector<const plan::Plan*> all;
  for (const plan::Plan& plan : plans) all.push_back(&plan);
  const codegen::Kernel kernel = codegen::make_kernel(all);
  for (const plan::Plan& plan : plans) EXPECT(codegen::find_numbers(kernel, plan).has_value());
  const size_t forms =
      static_cast<size_t>(std::ranges::count_if(kernel.code, [](const auto& c) { return c.row.has_value(); }));
  EXPECT(forms >= 2 && forms <= 3);
  const codegen::Kernel whole =
      codegen::make_kernel({all.data(), 1});  // rows of 1024, kept, every thread has all chunks
  EXPECT(whole.code[0].row->full && codegen::find_numbers(whole, row_plan(77, 1024)).has_value());
  for (const int64_t length : {1023, 1000, 512, 2048})
    EXPECT(!codegen::find_numbers(whole, row_plan(256, length)).has_value());
}

/// What few-row products copy without computing it: all elements of a plain load, which are no flagged words.
void copied_prologues() {
  const auto program = [](auto body) {
    ProgramBuilder b(ProgramKind::kPrologue, 2, 1, 2);
    b.op(Opcode::kYield, body(b));
    return b.program;
  };
  const auto expect_type = [](const std::string& source, const char* type) {
    EXPECT(contains(source, cat("  using Copied = ", type, ";\n").c_str()));
  };
  const auto text = [](const Program& p, uint32_t broadcast = 0) {
    return codegen::program_source(p, 0, "", {.broadcast = broadcast});
  };
  const Program plain = program([](ProgramBuilder& b) { return b.load(0, DType::kBF16); });
  expect_type(text(plain), "bf16");
  expect_type(text(plain, 2), "bf16");
  expect_type(text(plain, 1), "void");  // one element for all of k
  expect_type(codegen::flagged_program_source(plain, 0), "void");
  expect_type(text(program([](ProgramBuilder& b) { return b.load(0, DType::kF16); })), "f16");
  expect_type(text(program([](ProgramBuilder& b) { return b.load(0, DType::kF32); })), "float");
  expect_type(text(program([](ProgramBuilder& b) { return b.load(0, DType::kBF16, b.index(1)); })), "void");
  expect_type(text(program([](ProgramBuilder& b) {
                return b.load(0, DType::kBF16, -1, -1, b.op(Opcode::kLt, b.index(1), b.constant(8, DType::kI64)));
              })),
              "void");
  expect_type(text(program([](ProgramBuilder& b) { return b.op(Opcode::kNeg, b.load(0, DType::kBF16)); })), "void");
  expect_type(text(program([](ProgramBuilder& b) { return b.constant(1); })), "void");
}

}  // namespace

int main() {
  kernels_are_shared();
  ways_of_epilogues();
  flat_operands_are_in_the_source();
  types_of_masks();
  rows_of_all_lengths();
  columns_of_many_sums_have_shorter_vectors();
  sizes_are_not_in_the_source();
  few_rows_are_sizes();
  forms_of_one_op_are_called();
  only_what_is_needed();
  accurate_functions_for_fp32();
  slots_choose_the_capacity();
  malformed_programs();
  copied_prologues();
  return ark::test::result("codegen");
}
