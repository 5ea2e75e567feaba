// Hand-made plans whose sources the compile test builds: only what codegen looks at is filled in (kinds, programs,
// operand types).
#pragma once
#include <string>
#include <vector>

#include "plan/plan.h"

namespace ark::cuda_compile {

/// Builds a program instruction by instruction; each function returns the register.
struct ProgramBuilder {
  Program program;

  ProgramBuilder(ProgramKind kind, int num_dims, int reduce_dims, int num_operands) {
    program.kind = kind;
    program.num_dims = num_dims;
    program.reduce_dims = reduce_dims;
    program.num_operands = num_operands;
  }
  int16_t add(Instr instr) {
    program.instrs.push_back(instr);
    return static_cast<int16_t>(program.instrs.size() - 1);
  }
  int16_t load(int operand, DType type, int index = -1, int index2 = -1, int predicate = -1) {
    Instr i{.op = Opcode::kLoad, .dtype = type};
    i.operand = static_cast<int16_t>(operand);
    i.a = static_cast<int16_t>(index), i.b = static_cast<int16_t>(index2), i.c = static_cast<int16_t>(predicate);
    return add(i);
  }
  int16_t store(int operand, DType type, int value, bool uniform = false, int index = -1, int predicate = -1) {
    Instr i{.op = Opcode::kStore, .dtype = type};
    i.operand = static_cast<int16_t>(operand);
    i.a = static_cast<int16_t>(value), i.b = static_cast<int16_t>(index), i.d = static_cast<int16_t>(predicate);
    i.uniform = uniform;
    return add(i);
  }
  int16_t op(Opcode code, int a = -1, int b = -1, int c = -1, DType type = DType::kF32) {
    Instr i{.op = code, .dtype = type};
    i.a = static_cast<int16_t>(a), i.b = static_cast<int16_t>(b), i.c = static_cast<int16_t>(c);
    return add(i);
  }
  int16_t constant(double value, DType type = DType::kF32) {
    Instr i{.op = Opcode::kConst, .dtype = type};
    i.imm = value;
    i.imm_int = static_cast<int64_t>(value);
    return add(i);
  }
  int16_t index(int dim) {
    Instr i{.op = Opcode::kIndex, .dtype = DType::kI64};
    i.aux = static_cast<int16_t>(dim);
    return add(i);
  }
  int16_t reduce(ReduceOp op, int a, DType type = DType::kF32) {
    Instr i{.op = Opcode::kReduce, .dtype = type};
    i.a = static_cast<int16_t>(a), i.aux = static_cast<int16_t>(op);
    return add(i);
  }
  int16_t root(int which = 0, int sign = 0) {
    Instr i{.op = Opcode::kRoot, .dtype = DType::kF32};
    i.aux = static_cast<int16_t>(which), i.delta_sign = static_cast<int8_t>(sign);
    return add(i);
  }
};

/// The program's number.
inline int add_program(plan::Plan& plan, const ProgramBuilder& builder) {
  plan.programs.push_back(builder.program);
  return static_cast<int>(plan.programs.size()) - 1;
}

struct NamedPlan {
  std::string name;
  plan::Plan plan;
};

/// An operand of a row op: its strides and how many elements move at once.
struct RowOperand {
  DType type;
  std::vector<int64_t> strides;
  int vector = 1;
};
/// x / sqrt(mean(x^2)) * w of rows of 2048, as a program of rows or a prologue.
ProgramBuilder rms_norm(ProgramKind kind);
/// How rows are walked follows from their length, their number and the strides of the operands.
plan::Op row_op(int program, const std::string& name, const std::vector<int64_t>& sizes, int reduce_dims,
                const std::vector<RowOperand>& operands);

/// Every program-shaped kind with every opcode; norms, softmax, column sums, few-row matmuls of each type and size
/// class, decode attention, attention of any size.
std::vector<NamedPlan> plans();
/// Products of few rows: every size, and one, eight and sixteen rows in two layers.
std::vector<NamedPlan> row_product_plans();
/// Products, epilogues and attention of a training step, forward and backward; fp32 products beside them.
std::vector<NamedPlan> training_plans();
/// Small tiles of products: in every layout, and beside the other tiles and attention.
std::vector<NamedPlan> small_tile_plans();
/// Rows that fewer threads than a warp share.
std::vector<NamedPlan> short_row_plans();
/// Softmax, log-sum-exp, norm, and norm of a sum, in every form that odd rows of 1 to 1100 elements have in bf16; norms
/// divide by 256.
std::vector<NamedPlan> kept_row_plans();
/// Products whose rows go to the ranks of groups of several sizes; stores by batch of every number of ranks.
std::vector<NamedPlan> scattered_plans();
/// Exchanges of several groups.
std::vector<NamedPlan> group_plans();

}  // namespace ark::cuda_compile
