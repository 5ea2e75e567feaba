#include "codegen/operand_sizes.h"

#include <bit>

#include "base/check.h"

namespace ark::codegen {

std::string operand_sizes_source(const Program& program, uint32_t broadcast) {
  uint64_t shifts = 0;
  for (const Instr& in : program.instrs) {
    if ((in.op != Opcode::kLoad && in.op != Opcode::kStore) || in.operand < 0 || in.operand >= 32) continue;
    const auto shift = static_cast<uint64_t>(std::countr_zero(static_cast<unsigned>(size_bytes(in.dtype))));
    shifts |= shift << (2 * in.operand);
  }
  return cat("  static constexpr u64 kOperandShifts = ", shifts, "ull; static constexpr u32 kScalars = ", broadcast,
             "u;\n");
}

}  // namespace ark::codegen
