// Programs that differ in added numbers are one (planner/tile/share_programs.h), on the host target and in the source.
#include "codegen/codegen.h"
#include "planner/planner.h"
#include "support/model_graph.h"
#include "support/test_host_util.h"
#include "targets/target.h"

using namespace ark;
using namespace ark::ir;
using ark::test::expect;
using ark::test::finish;
using ark::test::GraphBuilder;
using ark::test::number;

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
                  random = b.value(DType::kF32, {kRows, rows, 3}), loaded = b.value(DType::kF32, {kRows, kColumns}),
                  padded = b.input(DType::kF32, {kRows, rows, 3});  // so that the stream is walked by rows
    b.graph.values[static_cast<size_t>(padded)].strides = {number(3 * rows + 1), number(3), number(1)};
    b.node(OpKind::kRand, {seed, offset}, {random});
    b.graph.outputs.push_back(b.pointwise(Opcode::kAdd, {random, padded}, DType::kF32, {kRows, rows, 3}));
    b.node(OpKind::kIndexLoad, {table, index}, {loaded}).attrs.map = {-1, 1};
    b.graph.outputs.push_back(loaded);
    return planner::make_plan(b.graph, {.sizes_vary = sizes_vary});
  };
  const plan::Plan few = plan_of(50, true), many = plan_of(70, true);
  expect(few.programs == many.programs, "share: programs of other sizes are the same");
  expect(parameters_in(few) >= 1, "share: sizes are parameters");
  expect(plan_of(50, false).programs != plan_of(70, false).programs, "share: without symbols numbers stay");
}

constexpr int64_t kHeads = 3, kDim = 8, kWidth = 64, kPosition = 5;

/// One row of a few-row product goes to a place of a cache [1, kHeads, keys, kDim].
plan::Plan append_to_cache(int64_t keys, bool sizes_vary) {
  ark::test::Model m;
  const ValueId x = m.input(DType::kF32, {1, kWidth}), w = m.input(DType::kF32, {kHeads * kDim, kWidth}),
                position = m.input(DType::kI64, {}), cache = m.input(DType::kF32, {1, kHeads, keys, kDim});
  const ValueId row = m.reshape(m.matmul(x, m.transposed(w), DType::kF32), {1, kHeads, 1, kDim});
  m.copy_to(cache, m.index_store(cache, row, m.reshape(position, {1, 1, 1, 1}), {0, 1, ~0, 3}));
  return planner::make_plan(m.graph, {.sizes_vary = sizes_vary});
}

/// The stride of a cache's heads is no part of the code where sizes vary, though the product's record is one of several
/// programs.
void caches_of_any_length_share_code() {
  const plan::Plan few = append_to_cache(50, true), many = append_to_cache(70, true);
  expect(few.ops.size() == 1 && few.ops[0].record.kind == abi::TaskKind::kMatmulRows, "share: one few-row product");
  expect(few.programs == many.programs, "share: programs of caches of other lengths are the same");
  expect(append_to_cache(50, false).programs != append_to_cache(70, false).programs,
         "share: without symbols the cache's length stays");
  for (const int64_t keys : {50, 70}) {
    std::vector<float> x(kWidth), w(kHeads * kDim * kWidth), cache(static_cast<size_t>(kHeads * keys * kDim), -1);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 7) - 3;
    for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(i % 5) - 2;
    int64_t position = kPosition;
    const std::vector<void*> slots = {x.data(), w.data(), &position, cache.data()};
    auto executable = targets::make_host(keys == 50 ? few : many, {.num_threads = 2});
    std::vector<std::byte> state(executable->state_bytes());
    executable->launch({.slots = slots, .run_state = state.data()});
    for (int64_t at = 0; at < static_cast<int64_t>(cache.size()); ++at) {
      const int64_t column = at / (keys * kDim) * kDim + at % kDim;
      float expected = 0;
      for (int64_t k = 0; k < kWidth; ++k) expected += x[size_t(k)] * w[size_t(column * kWidth + k)];
      if (at / kDim % keys != kPosition) expected = -1;
      if (cache[size_t(at)] != expected)
        return expect(false,
                      cat("share: cache of ", keys, " at ", at, " is ", cache[size_t(at)], ", expected ", expected));
    }
  }
}

}  // namespace

int main() {
  caches_of_any_length_share_code();
  sizes_are_parameters();
  added_numbers_are_parameters();
  factors_stay();
  equal_numbers_stay();
  random_streams_share_a_program();
  return finish("share programs");
}
