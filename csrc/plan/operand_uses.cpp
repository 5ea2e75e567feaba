#include "plan/operand_uses.h"

#include <algorithm>

#include "base/check.h"
#include "plan/params.h"

namespace ark::plan {
namespace {

/// Marks what one program does with the operands from `first` on.
void uses_of(const Op& op, const Program& program, int first, std::vector<OperandUse>& uses) {
  std::vector<bool> reduced(program.instrs.size(), false);  // depends on a Reduce
  std::vector<bool> everywhere(uses.size(), false), touched(uses.size(), false);
  const bool of_batches = kind_of(op.record).family == Family::kMatmul;  // the first coordinate of tile and domain
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    const Instr& instr = program.instrs[i];
    for (int16_t arg : {instr.a, instr.b, instr.c, instr.d})
      if (arg >= 0 && reduced[static_cast<size_t>(arg)]) reduced[i] = true;
    if (instr.op == Opcode::kReduce) reduced[i] = true;
    bool parts = instr.op == Opcode::kLoadParts;
    if (instr.op != Opcode::kLoad && instr.op != Opcode::kStore && !parts) continue;
    auto at = static_cast<size_t>(first + instr.operand);
    check(first + instr.operand >= 0 && at + (parts ? int{abi::PartsOperand::kCount} - 1 : 0) < uses.size(), "op ",
          op.name, ": its program names operand ", at, " of ", uses.size());
    if (parts) {
      using P = abi::PartsOperand;
      for (size_t k : {P::kValues, P::kMaxSum, P::kRange, P::kPosition})
        uses[at + k].read = uses[at + k].anywhere = true;
      continue;
    }
    OperandUse& use = uses[at];
    bool store = instr.op == Opcode::kStore;
    (store ? use.write : use.read) = true;
    const int64_t batch = store && of_batches ? stored_batch(program, instr) : -1;
    use.batch = touched[at] && use.batch != batch ? -1 : batch;
    touched[at] = true;
    use.predicated |= (store ? instr.d : instr.c) >= 0;
    use.anywhere |= op.operands[at].index_operand >= 0;
    bool once = store && (program.kind == ProgramKind::kColumn ? static_cast<bool>(reduced[i]) : instr.uniform);
    use.once |= once;
    if (!once) everywhere[at] = true;
  }
  for (size_t i = 0; i < uses.size(); ++i)
    if (everywhere[i]) uses[i].once = false;
}

}  // namespace

int64_t stored_batch(const Program& program, const Instr& store) {
  if (store.d < 0 || program.kind != ProgramKind::kEpilogue) return -1;
  const Instr& asked = program.instrs[static_cast<size_t>(store.d)];
  if (asked.op != Opcode::kEq || asked.a < 0 || asked.b < 0) return -1;
  const Instr &left = program.instrs[static_cast<size_t>(asked.a)],
              &right = program.instrs[static_cast<size_t>(asked.b)];
  const bool asks = left.op == Opcode::kIndex && left.aux == 0 && right.op == Opcode::kConst && right.imm_int >= 0 &&
                    right.dtype == DType::kI64;
  return asks ? right.imm_int : -1;
}

void program_uses(const Op& op, const std::vector<Program>& programs, int number, int first,
                  std::vector<OperandUse>& uses) {
  if (number < 0) return;
  check(static_cast<size_t>(number) < programs.size(), "op ", op.name, ": program ", number, " of ", programs.size());
  uses_of(op, programs[static_cast<size_t>(number)], first, uses);
}

std::vector<OperandUse> operand_uses(const Op& op, const std::vector<Program>& programs) {
  std::vector<OperandUse> uses(op.operands.size());
  for_each_program(op.record,
                   [&](int number, int first, ProgramKind) { program_uses(op, programs, number, first, uses); });
  for (const Role& role : kind_of(op.record).roles) {
    const auto number = static_cast<size_t>(role.number);
    if (number >= uses.size()) continue;
    (role.access == Access::kWrite ? uses[number].write : uses[number].read) = true;
  }
  if (abi::has_own_rows(op.record)) uses.at(abi::MatmulOperand::kOwn).read = true;
  if (abi::is_gated_tile(op.record)) uses.at(abi::MatmulOperand::kB2).read = true;
  if (op.record.kind == abi::TaskKind::kMatmulRows) {  // weights stand where its segments say
    const abi::MatmulRowsParams& p = op.record.params.rows;
    for (int s = 0; s < p.num_segments; ++s) {
      uses.at(static_cast<size_t>(p.segment[s].weight)).read = true;
      if (p.gated) uses.at(static_cast<size_t>(p.segment[s].weight2)).read = true;
    }
  }
  for (size_t i = 0; i < uses.size(); ++i)
    if (op.operands[i].slot == abi::kNoSlot) uses[i] = OperandUse{};
  return uses;
}

}  // namespace ark::plan
