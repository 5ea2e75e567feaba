// Programs are in SSA form and fit the records that name them; grids cover the domains; tensor maps show what the
// operands that they stand for do.
#include <vector>

#include "planner/verify/kinds/kinds.h"

namespace ark::planner {
namespace {

using plan::Plan;

void check_instr(const Plan& plan, size_t number, const Program& program, size_t at, std::vector<bool>& reduced) {
  const Instr& i = program.instrs[at];
  auto where = [&](bool good, const char* what) {
    require(plan, good, "program ", number, ", instruction ", at, " (", static_cast<int>(i.op), "): ", what);
  };
  where(i.op >= Opcode{} && static_cast<int>(i.op) < kNumOpcodes, "unknown opcode");
  where(static_cast<int>(i.dtype) < kNumDTypes, "unknown type");
  const int16_t args[4] = {i.a, i.b, i.c, i.d};
  for (int16_t arg : args) where(arg >= -1 && arg < static_cast<int>(at), "uses a later instruction");
  bool parameter = i.op == Opcode::kParameter;
  bool memory = i.op == Opcode::kLoad || i.op == Opcode::kStore || i.op == Opcode::kLoadParts || parameter;
  where(!parameter || (i.aux >= 0 && i.aux < abi::kMaxDims), "names a parameter that is not there");
  int needed = i.op == Opcode::kStore ? 1 : arity(i.op);
  for (int k = 0; k < needed; ++k) where(args[k] >= 0, "lacks an argument");
  int entries = i.op == Opcode::kLoadParts ? int{abi::PartsOperand::kCount} : 1;
  where(!memory || (i.operand >= 0 && i.operand + entries <= program.num_operands),
        "names an operand that is not there");
  where(i.op != Opcode::kIndex || (i.aux >= 0 && i.aux < program.num_dims), "names a dimension that is not there");
  where(i.op != Opcode::kRoot || program.kind == ProgramKind::kEpilogue, "a root outside of an epilogue");
  where(i.op != Opcode::kYield || program.kind == ProgramKind::kPrologue, "a yield outside of a prologue");
  for (int16_t arg : args)
    if (arg >= 0 && reduced[static_cast<size_t>(arg)]) reduced[at] = true;
  if (i.op != Opcode::kReduce) return;
  bool rows = program.kind == ProgramKind::kRow || program.kind == ProgramKind::kPrologue;
  where(rows || program.kind == ProgramKind::kColumn, "a reduction in a program without one");
  where(i.aux >= 0 && i.aux < kNumReduceOps, "unknown reduction");
  where(rows || !reduced[at], "a column program reduces twice");
  reduced[at] = true;
}

void check_program(const Plan& plan, size_t number) {
  const Program& p = plan.programs[number];
  bool dims = p.num_dims >= 0 && p.num_dims <= abi::kMaxDims && p.reduce_dims >= 0 && p.reduce_dims <= p.num_dims;
  require(plan, dims, "program ", number, ": ", p.num_dims, " dimensions, ", p.reduce_dims, " of them reduced");
  std::vector<bool> reduced(p.instrs.size(), false);
  for (size_t i = 0; i < p.instrs.size(); ++i) check_instr(plan, number, p, i, reduced);
}

}  // namespace

void verify_records(const Plan& plan) {
  for (size_t i = 0; i < plan.programs.size(); ++i) check_program(plan, i);
  for (size_t i = 0; i < plan.ops.size(); ++i) reading_of(plan.ops[i].record.kind).record(RecordCheck(plan, i));
}

}  // namespace ark::planner
