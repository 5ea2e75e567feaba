// What an op does with each of its operands, from its kind and its programs (regions.h).
#include <algorithm>

#include "base/check.h"
#include "plan/regions.h"

namespace ark::planner {
namespace {

using abi::TaskKind;

/// Marks what one program does with the operands from `first` on.
void program_uses(const plan::Op& op, const Program& program, int first, std::vector<OperandUse>& uses) {
  std::vector<bool> reduced(program.instrs.size(), false);  // depends on a Reduce
  std::vector<bool> everywhere(uses.size(), false);
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    const Instr& instr = program.instrs[i];
    for (int16_t arg : {instr.a, instr.b, instr.c, instr.d})
      if (arg >= 0 && reduced[static_cast<size_t>(arg)]) reduced[i] = true;
    if (instr.op == Opcode::kReduce) reduced[i] = true;
    bool parts = instr.op == Opcode::kLoadParts;
    if (instr.op != Opcode::kLoad && instr.op != Opcode::kStore && !parts) continue;
    auto at = static_cast<size_t>(first + instr.operand);
    check(first + instr.operand >= 0 && at + (parts ? 4 : 0) < uses.size(), "op ", op.name,
          ": its program names operand ", at, " of ", uses.size());
    if (parts) {
      for (size_t k : {at, at + 1, at + 2, at + 4}) uses[k].read = uses[k].anywhere = true;
      continue;
    }
    OperandUse& use = uses[at];
    bool store = instr.op == Opcode::kStore;
    (store ? use.write : use.read) = true;
    use.predicated |= (store ? instr.d : instr.c) >= 0;
    use.anywhere |= op.operands[at].index_operand >= 0;
    bool once = store && (program.kind == ProgramKind::kColumn ? static_cast<bool>(reduced[i]) : instr.uniform);
    use.once |= once;
    if (!once) everywhere[at] = true;
  }
  for (size_t i = 0; i < uses.size(); ++i)
    if (everywhere[i]) uses[i].once = false;
}

void attention_uses(TaskKind kind, const plan::Op& op, std::vector<OperandUse>& uses) {
  auto written = [&](size_t i) {
    if (kind == TaskKind::kAttentionBackwardRows) return i == 2;
    if (kind == TaskKind::kAttentionBackward) return i == 9 || i == 10;
    if (kind == TaskKind::kAttentionBackwardQuery) return i == 8;
    if (kind == TaskKind::kAttentionDecode && (i == 7 || i == 8))
      return op.record.params.attention.fresh_operand != static_cast<int>(i);
    return i == 3 || i == 4;
  };
  for (size_t i = 0; i < uses.size(); ++i) (written(i) ? uses[i].write : uses[i].read) = true;
}

}  // namespace

std::vector<OperandUse> operand_uses(const plan::Op& op, const std::vector<Program>& programs) {
  std::vector<OperandUse> uses(op.operands.size());
  const abi::Params& params = op.record.params;
  auto program = [&](int index, int first) {
    if (index < 0) return;
    check(static_cast<size_t>(index) < programs.size(), "op ", op.name, ": program ", index, " of ", programs.size());
    program_uses(op, programs[static_cast<size_t>(index)], first, uses);
  };
  switch (op.record.kind) {
    case TaskKind::kPointwise:
    case TaskKind::kRow:
    case TaskKind::kColumn:
      program(params.program.program, params.program.first_operand);
      break;
    case TaskKind::kMatmulTile:
    case TaskKind::kMatmulFloat:
    case TaskKind::kMatmulSimple:
      check(uses.size() >= 2, "op ", op.name, ": a matmul with ", uses.size(), " operands");
      uses[0].read = uses[1].read = true;
      program(params.matmul.program, params.matmul.first_operand);
      break;
    case TaskKind::kMatmulRows:
      program(params.rows.prologue, params.rows.prologue_operand);
      for (int s = 0; s < params.rows.num_segments; ++s) {
        const abi::Segment& segment = params.rows.segment[s];
        program(segment.program, segment.first_operand);
        uses.at(static_cast<size_t>(segment.weight)).read = true;
        if (params.rows.gated) uses.at(static_cast<size_t>(segment.weight2)).read = true;
      }
      break;
    case TaskKind::kMaskRange:
      check(uses.size() == 2, "op ", op.name, ": a mask range with ", uses.size(), " operands");
      uses[0].read = uses[1].write = true;
      break;
    default:
      attention_uses(op.record.kind, op, uses);
      break;
  }
  for (size_t i = 0; i < uses.size(); ++i)
    if (op.operands[i].slot == abi::kNoSlot) uses[i] = OperandUse{};
  return uses;
}

}  // namespace ark::planner
