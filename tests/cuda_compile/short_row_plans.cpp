// Rows that 4, 8 or 16 threads share, one or several at once; rows of every form that bf16 up to 1100 elements have.
#include <set>

#include "base/check.h"
#include "codegen/choose_row_form.h"
#include "plans.h"

namespace ark::cuda_compile {
namespace {

RowOperand matrix(DType type, int64_t length) {
  return {type, {length, 1}, length % 8 != 0 ? 1 : 16 / size_bytes(type)};
}

void add_softmax(plan::Plan& p, DType type, int64_t rows, int64_t length) {
  ProgramBuilder b(ProgramKind::kRow, 2, 1, 2);
  const int x = b.load(0, type);
  const int e = b.op(Opcode::kExp, b.op(Opcode::kSub, x, b.reduce(ReduceOp::kMax, x)));
  b.store(1, type, b.op(Opcode::kDiv, e, b.reduce(ReduceOp::kSum, e)));
  p.ops.push_back(
      row_op(add_program(p, b), "softmax", {rows, length}, 1, {matrix(type, length), matrix(type, length)}));
}

void add_log_sum_exp(plan::Plan& p, DType type, int64_t rows, int64_t length) {
  ProgramBuilder b(ProgramKind::kRow, 2, 1, 2);
  const int x = b.load(0, type), top = b.reduce(ReduceOp::kMax, x);
  const int sum = b.reduce(ReduceOp::kSum, b.op(Opcode::kExp, b.op(Opcode::kSub, x, top)));
  b.store(1, type, b.op(Opcode::kAdd, b.op(Opcode::kLog, sum), top), true);
  p.ops.push_back(row_op(add_program(p, b), "log-sum-exp", {rows, length}, 1, {matrix(type, length), {type, {1, 0}}}));
}

/// x's norm of rows, by sums times 1 / divisor.
int add_norm(ProgramBuilder& b, int x, int64_t divisor, int weight, int bias, DType type) {
  const int n = b.constant(1.0 / static_cast<double>(divisor));
  const int d = b.op(Opcode::kSub, x, b.op(Opcode::kMul, b.reduce(ReduceOp::kSum, x), n));
  const int variance = b.op(Opcode::kMul, b.reduce(ReduceOp::kSum, b.op(Opcode::kMul, d, d)), n);
  const int scale = b.op(Opcode::kRsqrt, b.op(Opcode::kAdd, variance, b.constant(1e-5)));
  return b.op(Opcode::kFma, b.op(Opcode::kMul, d, scale), b.load(weight, type), b.load(bias, type));
}

RowOperand weight_of(DType type, int64_t length) {
  RowOperand weight = matrix(type, length);
  weight.strides[0] = 0;
  return weight;
}

void add_layer_norm(plan::Plan& p, DType type, int64_t rows, int64_t length, int64_t divisor) {
  ProgramBuilder b(ProgramKind::kRow, 2, 1, 4);
  b.store(3, type, add_norm(b, b.load(0, type), divisor, 1, 2, type));
  const RowOperand x = matrix(type, length), weight = weight_of(type, length);
  p.ops.push_back(row_op(add_program(p, b), "layer norm", {rows, length}, 1, {x, weight, weight, x}));
}

/// The sum of two, as it is stored, and its norm.
void add_residual_norm(plan::Plan& p, DType type, int64_t rows, int64_t length, int64_t divisor) {
  ProgramBuilder b(ProgramKind::kRow, 2, 1, 6);
  const int sum = b.op(Opcode::kAdd, b.load(0, type), b.load(1, type));
  const int x = type == DType::kF32 ? sum : b.op(Opcode::kCast, sum, -1, -1, type);
  b.store(4, type, x);
  b.store(5, type, add_norm(b, x, divisor, 2, 3, type));
  const RowOperand row = matrix(type, length), weight = weight_of(type, length);
  p.ops.push_back(row_op(add_program(p, b), "residual", {rows, length}, 1, {row, row, weight, weight, row, row}));
}

/// Greatest elements, their places and a flag, of rows of two dimensions.
void add_places(plan::Plan& p) {
  ProgramBuilder b(ProgramKind::kRow, 4, 2, 4);
  const int x = b.load(0, DType::kF32);
  b.store(1, DType::kI64, b.reduce(ReduceOp::kArgMax, x, DType::kI64), true);
  b.store(2, DType::kBool, b.reduce(ReduceOp::kAny, b.op(Opcode::kIsNan, x, -1, -1, DType::kBool), DType::kBool), true);
  b.store(3, DType::kF32, b.op(Opcode::kSub, x, b.reduce(ReduceOp::kMax, x)));
  const RowOperand row = {DType::kF32, {9216, 72, 12, 1}, 4};
  p.ops.push_back(row_op(add_program(p, b), "places", {50, 128, 6, 12}, 2,
                         {row, {DType::kI64, {128, 1, 0, 0}}, {DType::kBool, {128, 1, 0, 0}}, row}));
}

plan::Plan residual_rows() {
  plan::Plan p;
  for (const int64_t length : {65, 127, 129, 257, 320, 321, 513, 769, 1001})
    add_residual_norm(p, DType::kBF16, 30000, length, length);
  return p;
}

/// What differs in the code of rows that begin anywhere; empty: all of them are aligned. `sure`: the chunks that every
/// thread has too.
std::string form_name(const Program& program, const plan::Op& op, bool sure) {
  const codegen::RowForm f = codegen::row_form(program, {&op});
  if (!f.edges && f.vector > 1) return "";
  return ark::cat(f.vector_operands, " ", f.vector, " ", f.threads, " ", f.rows, " ", f.chunks, " ", f.edge_elements,
                  " ", sure ? f.sure : 0, " ", f.ahead_operands, " ", f.standing_operands);
}

}  // namespace

std::vector<NamedPlan> short_row_plans() {
  plan::Plan p;
  for (const int64_t length : {64, 200, 320}) {
    const int64_t rows = length == 64 ? 100000 : 30000;
    add_softmax(p, DType::kBF16, rows, length);
    add_log_sum_exp(p, DType::kBF16, rows, length);
    add_layer_norm(p, DType::kBF16, rows, length, length);
  }
  for (const int64_t length : {65, 197, 321}) {
    add_softmax(p, DType::kBF16, 30000, length);
    add_log_sum_exp(p, DType::kBF16, 30000, length);
    add_layer_norm(p, DType::kBF16, 30000, length, length);
  }
  add_softmax(p, DType::kF32, 30000, 197);
  add_softmax(p, DType::kF32, 100000, 16);
  add_layer_norm(p, DType::kF32, 30000, 256, 256);
  add_softmax(p, DType::kF64, 30000, 40);
  add_places(p);
  return {{"short_rows", p}, {"residual_rows", residual_rows()}};
}

std::vector<NamedPlan> kept_row_plans() {
  plan::Plan p;
  std::set<std::string> forms;
  for (int64_t length = 1; length <= 1100; ++length) {
    plan::Plan all;
    add_softmax(all, DType::kBF16, 30000, length);
    add_log_sum_exp(all, DType::kBF16, 30000, length);
    add_layer_norm(all, DType::kBF16, 30000, length, 256);
    add_residual_norm(all, DType::kBF16, 30000, length, 256);
    for (size_t i = 0; i < all.ops.size(); ++i) {
      const std::string form = form_name(all.programs[i], all.ops[i], i == 0);
      if (form.empty() || !forms.insert(ark::cat(i, " ", form)).second) continue;
      p.programs.push_back(all.programs[i]);
      p.ops.push_back(all.ops[i]);
      p.ops.back().record.params.program.program = static_cast<int>(p.programs.size()) - 1;
    }
  }
  return {{"kept_rows", p}};
}

}  // namespace ark::cuda_compile
