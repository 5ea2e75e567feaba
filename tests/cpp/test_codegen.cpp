// Generated sources: deterministic, free of sizes, only what the plan needs; malformed programs are refused.
#include <string>

#include "../cuda_compile/plans.h"
#include "base/check.h"
#include "check.h"
#include "codegen/codegen.h"
#include "graph_builder.h"
#include "planner/planner.h"

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

/// How many rows there are is data from two on; one row keeps a form of its own.
void few_rows_are_sizes() {
  for (const DType dtype : {DType::kBF16, DType::kF32})
    for (const int64_t k : {1024, 8192}) {  // the second: too long for eight rows
      const std::string two = few_rows_source(2, k, dtype);
      EXPECT(contains(two, "RowsForm0"));
      for (const int64_t m : {3, 4, 5, 7, 8}) EXPECT(few_rows_source(m, k, dtype) == two);
      EXPECT(few_rows_source(1, k, dtype) != two);
    }
}

void only_what_is_needed() {
  const codegen::Source source = codegen::generate(pointwise_plan(64), {});
  EXPECT(contains(source.text, "device/pointwise.cuh"));
  EXPECT(!contains(source.text, "matmul"));
  EXPECT(!contains(source.text, "patch_tensor_maps"));
  EXPECT(contains(source.text, "// add+tanh"));
  EXPECT(contains(source.text, "op::tanh_fast"));  // the result is rounded to bf16
  EXPECT(contains(source.text, "call<Pointwise<OneProgram<Program0>>>(consumer, task)"));
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

}  // namespace

int main() {
  sizes_are_not_in_the_source();
  few_rows_are_sizes();
  only_what_is_needed();
  accurate_functions_for_fp32();
  slots_choose_the_capacity();
  malformed_programs();
  return ark::test::result("codegen");
}
