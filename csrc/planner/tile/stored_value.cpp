#include "planner/tile/stored_value.h"

namespace ark::planner {

bool is_plain_load(const Instr& in) { return in.op == Opcode::kLoad && in.a < 0 && in.b < 0 && in.c < 0; }
bool is_plain_store(const Instr& in) {
  return in.op == Opcode::kStore && !in.uniform && in.b < 0 && in.c < 0 && in.d < 0;
}
bool touches_memory(const Instr& in) {
  return in.op == Opcode::kLoad || in.op == Opcode::kStore || in.op == Opcode::kLoadParts;
}

int stored_operand(const FusedOp& op, const Program& epilogue) {
  const abi::MatmulTileParams& p = op.op.record.params.matmul;
  int stored = -1;
  for (const Instr& in : epilogue.instrs) {
    if (in.op == Opcode::kIndex || in.op == Opcode::kParameter || in.op == Opcode::kCheckIndex) return -1;
    if (in.op == Opcode::kRoot && (in.delta_sign != 0 || in.aux != 0)) return -1;
    if (!touches_memory(in)) continue;
    if (in.op == Opcode::kStore) {
      if (stored >= 0 || !is_plain_store(in)) return -1;
      stored = p.first_operand + in.operand;
    } else if (!is_plain_load(in)) {
      return -1;
    }
  }
  if (stored < 0) return -1;
  const abi::Operand& to = op.op.operands[static_cast<size_t>(stored)];
  for (size_t x = 0; x < op.op.operands.size(); ++x) {
    const abi::Operand& o = op.op.operands[x];
    if (op.access[x] == Access::kParameters || o.index_operand >= 0 || o.slot == abi::kNoSlot) return -1;
    if (x != static_cast<size_t>(stored) && (o.slot == to.slot || op.access[x] != Access::kRead)) return -1;
  }
  return op.access[static_cast<size_t>(stored)] == Access::kWrite ? stored : -1;
}

bool uses(const FusedOp& op, uint32_t slot) {
  for (size_t x = 0; x < op.access.size(); ++x)
    if (op.access[x] != Access::kParameters && op.op.operands[x].slot == slot) return true;
  return false;
}

}  // namespace ark::planner
