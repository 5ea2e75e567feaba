// Programs that differ in added numbers are one (planner/share_programs.h), on the host target and in the source.
#include "codegen/codegen.h"
#include "graph_builder.h"
#include "planner/planner.h"
#include "targets/target.h"
#include "test_host_util.h"

using namespace ark;
using namespace ark::ir;
using ark::test::expect;
using ark::test::finish;
using ark::test::GraphBuilder;

namespace {

constexpr int64_t kRows = 12, kColumns = 40;

/// Output k of as many as there are numbers: input k `op` number k. Sizes differ, so that each is an op of its own.
Graph one_op_each(Opcode op, const std::vector<int64_t>& numbers) {
  GraphBuilder b;
  for (const int64_t n : numbers) {
    const int64_t rows = kRows + static_cast<int64_t>(b.graph.inputs.size());
    const ValueId x = b.input(DType::kI64, {rows, kColumns}), constant = b.value(DType::kI64, {});
    b.node(OpKind::kFull, {}, {constant}).attrs.imm_int = n;
    b.graph.outputs.push_back(b.pointwise(op, {x, constant}, DType::kI64, {rows, kColumns}));
  }
  return b.graph;
}

int parameters_in(const plan::Plan& plan) {
  int count = 0;
  for (const Program& program : plan.programs)
    for (const Instr& i : program.instrs) count += i.op == Opcode::kParameter;
  return count;
}

void added_numbers_are_parameters() {
  const std::vector<int64_t> numbers = {3, -7, int64_t{1} << 40, 0};
  const plan::Plan plan = planner::make_plan(one_op_each(Opcode::kAdd, numbers), {});
  expect(plan.ops.size() == numbers.size(), cat("share: ", plan.ops.size(), " ops"));
  expect(plan.programs.size() == 1, cat("share: ", plan.programs.size(), " programs, expected 1"));
  expect(parameters_in(plan) == 1, "share: one number is a parameter");
  const std::string source = codegen::generate(plan, {}).text;
  expect(source.find("c.operand(2).stride[0]") != std::string::npos, "share: the source reads the record");
  expect(source.find("1099511627776") == std::string::npos, "share: no number is in the source");
  expect(!plan::pack(plan).records.empty(), "share: numbers of 64 bits fit the records");

  std::vector<std::vector<int64_t>> memory;
  for (const plan::Buffer& b : plan.buffers) memory.emplace_back(static_cast<size_t>(b.size_bytes / 8));
  std::vector<void*> slots;
  for (size_t i = 0; i < memory.size(); ++i) {
    slots.push_back(memory[i].data());
    if (plan.buffers[i].kind == plan::BufferKind::kInput)
      for (size_t e = 0; e < memory[i].size(); ++e) memory[i][e] = static_cast<int64_t>(e * e) - 100;
  }
  auto executable = targets::make_host(plan, {.num_threads = 2});
  std::vector<std::byte> state(executable->state_bytes());
  executable->launch({.slots = slots, .run_state = state.data()});
  for (size_t i = 0; i < memory.size(); ++i) {
    if (plan.buffers[i].kind != plan::BufferKind::kOutput) continue;
    const int64_t added = numbers[static_cast<size_t>(plan.buffers[i].index)];
    for (size_t e = 0; e < memory[i].size(); ++e)
      if (memory[i][e] != static_cast<int64_t>(e * e) - 100 + added)
        return expect(false, cat("share: output ", plan.buffers[i].index, " at ", e, " is ", memory[i][e]));
  }
}

void factors_stay() {
  const plan::Plan plan = planner::make_plan(one_op_each(Opcode::kMul, {3, 5}), {});
  expect(plan.programs.size() == 2, cat("share: ", plan.programs.size(), " programs with factors, expected 2"));
  expect(parameters_in(plan) == 0, "share: a factor is no parameter");
}

void equal_numbers_stay() {
  const plan::Plan plan = planner::make_plan(one_op_each(Opcode::kAdd, {3, 3}), {});
  expect(plan.programs.size() == 1 && parameters_in(plan) == 0, "share: what is equal stays in the program");
}

/// Dropout: the streams of random numbers differ by a number only.
void random_streams_share_a_program() {
  GraphBuilder b;
  const ValueId seed = b.input(DType::kI64, {});
  for (int64_t k = 1; k <= 3; ++k) {
    const ValueId offset = b.value(DType::kI64, {}), x = b.input(DType::kF32, {kRows + k, kColumns}),
                  random = b.value(DType::kF32, {kRows + k, kColumns});
    b.node(OpKind::kFull, {}, {offset}).attrs.imm_int = 4 * k;
    b.node(OpKind::kRand, {seed, offset}, {random});
    b.graph.outputs.push_back(b.pointwise(Opcode::kMul, {x, random}, DType::kF32, {kRows + k, kColumns}));
  }
  const plan::Plan plan = planner::make_plan(b.graph, {});
  expect(plan.programs.size() == 1 && parameters_in(plan) == 1,
         cat("share: ", plan.programs.size(), " programs for three dropouts"));
}

/// Bounds of indices and strides of random streams are numbers of the record where sizes vary.
void sizes_are_parameters() {
  auto plan_of = [](int64_t rows, bool sizes_vary) {
    GraphBuilder b;
    const ValueId seed = b.input(DType::kI64, {}), offset = b.input(DType::kI64, {}),
                  table = b.input(DType::kF32, {rows, kColumns}), index = b.input(DType::kI64, {kRows, 1}),
                  random = b.value(DType::kF32, {kRows, rows, 3}), loaded = b.value(DType::kF32, {kRows, kColumns});
    b.node(OpKind::kRand, {seed, offset}, {random});
    b.graph.outputs.push_back(b.pointwise(Opcode::kNeg, {random}, DType::kF32, {kRows, rows, 3}));
    b.node(OpKind::kIndexLoad, {table, index}, {loaded}).attrs.map = {-1, 1};
    b.graph.outputs.push_back(loaded);
    return planner::make_plan(b.graph, {.sizes_vary = sizes_vary});
  };
  const plan::Plan few = plan_of(50, true), many = plan_of(70, true);
  expect(few.programs == many.programs, "share: programs of other sizes are the same");
  expect(parameters_in(few) >= 1, "share: sizes are parameters");
  expect(plan_of(50, false).programs != plan_of(70, false).programs, "share: without symbols numbers stay");
}

}  // namespace

int main() {
  sizes_are_parameters();
  added_numbers_are_parameters();
  factors_stay();
  equal_numbers_stay();
  random_streams_share_a_program();
  return finish("share programs");
}
