// Rows that 4, 8 or 16 threads share, one or several at once.
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

void add_layer_norm(plan::Plan& p, DType type, int64_t rows, int64_t length) {
  ProgramBuilder b(ProgramKind::kRow, 2, 1, 4);
  const int x = b.load(0, type), n = b.constant(1.0 / static_cast<double>(length));
  const int d = b.op(Opcode::kSub, x, b.op(Opcode::kMul, b.reduce(ReduceOp::kSum, x), n));
  const int variance = b.op(Opcode::kMul, b.reduce(ReduceOp::kSum, b.op(Opcode::kMul, d, d)), n);
  const int scale = b.op(Opcode::kRsqrt, b.op(Opcode::kAdd, variance, b.constant(1e-5)));
  b.store(3, type, b.op(Opcode::kFma, b.op(Opcode::kMul, d, scale), b.load(1, type), b.load(2, type)));
  RowOperand weight = matrix(type, length);
  weight.strides[0] = 0;
  p.ops.push_back(row_op(add_program(p, b), "layer norm", {rows, length}, 1,
                         {matrix(type, length), weight, weight, matrix(type, length)}));
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

}  // namespace

std::vector<NamedPlan> short_row_plans() {
  plan::Plan p;
  for (const int64_t length : {64, 200, 320}) {
    const int64_t rows = length == 64 ? 100000 : 30000;
    add_softmax(p, DType::kBF16, rows, length);
    add_log_sum_exp(p, DType::kBF16, rows, length);
    add_layer_norm(p, DType::kBF16, rows, length);
  }
  for (const int64_t length : {65, 197, 321}) {
    add_softmax(p, DType::kBF16, 30000, length);
    add_log_sum_exp(p, DType::kBF16, 30000, length);
    add_layer_norm(p, DType::kBF16, 30000, length);
  }
  add_softmax(p, DType::kF32, 30000, 197);
  add_softmax(p, DType::kF32, 100000, 16);
  add_layer_norm(p, DType::kF32, 30000, 256);
  add_softmax(p, DType::kF64, 30000, 40);
  add_places(p);
  return {{"short_rows", p}};
}

}  // namespace ark::cuda_compile
