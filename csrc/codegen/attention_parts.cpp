// How a program's kLoadParts is printed (device/program/attention_parts.cuh).
#include "base/check.h"
#include "codegen/program_analysis.h"

namespace ark::codegen {
namespace {

/// Elements of a row of the attention, if a vector's row and column are the quotient and the remainder of its place by
/// that power of two, and vectors begin at their multiples, as those of prologues do; else 0.
int64_t row_elements(const Program& program, const Instr& parts) {
  if (program.kind != ProgramKind::kPrologue || parts.a < 0 || parts.b < 0) return 0;
  const auto& instrs = program.instrs;
  const Instr &row = instrs[parts.a], &column = instrs[parts.b];
  const auto by_constant = [&](const Instr& i, Opcode op) { return i.op == op && instrs[i.b].op == Opcode::kConst; };
  if (!by_constant(row, Opcode::kShr) || !by_constant(column, Opcode::kAnd) || row.a != column.a) return 0;
  const Instr& place = instrs[row.a];
  if (place.op != Opcode::kIndex || place.aux != program.num_dims - 1) return 0;
  const int64_t shift = instrs[row.b].imm_int;
  if (shift < 0 || shift > 30 || instrs[column.b].imm_int != (int64_t{1} << shift) - 1) return 0;
  return int64_t{1} << shift;
}

}  // namespace

std::string load_parts_call(const Program& program, const Instr& instr) {
  return cat("load_parts<V, ", row_elements(program, instr), ">(c, ", instr.operand);
}

}  // namespace ark::codegen
