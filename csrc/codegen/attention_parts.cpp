// How a program's kLoadParts is printed (device/program/attention_parts.cuh).
#include "base/check.h"
#include "codegen/program_analysis.h"

namespace ark::codegen {
namespace {

constexpr int64_t kMostElements = int64_t{1} << 30;

/// Elements of a row of the attention, if a vector's row and column are the quotient and the remainder of its place by
/// that number, and vectors begin at their multiples, as those of prologues do; else 0.
int64_t row_elements(const Program& program, const Instr& parts) {
  if (program.kind != ProgramKind::kPrologue || parts.a < 0 || parts.b < 0) return 0;
  const auto& instrs = program.instrs;
  const Instr &row = instrs[parts.a], &column = instrs[parts.b];
  const auto by_constant = [&](const Instr& i, Opcode op) { return i.op == op && instrs[i.b].op == Opcode::kConst; };
  const bool bits = by_constant(row, Opcode::kShr) && by_constant(column, Opcode::kAnd);
  if (!bits && (!by_constant(row, Opcode::kDivFloor) || !by_constant(column, Opcode::kRemainder))) return 0;
  const Instr& place = instrs[row.a];
  if (row.a != column.a || place.op != Opcode::kIndex || place.aux != program.num_dims - 1) return 0;
  const int64_t by = instrs[row.b].imm_int, of_column = instrs[column.b].imm_int;
  if (!bits) return by == of_column && by > 0 && by <= kMostElements ? by : 0;
  return by >= 0 && by <= 30 && of_column == (int64_t{1} << by) - 1 ? int64_t{1} << by : 0;
}

}  // namespace

std::string load_parts_call(const Program& program, const Instr& instr) {
  return cat("load_parts<V, ", row_elements(program, instr), ">(c, ", instr.operand);
}

}  // namespace ark::codegen
