// What instructions take, values and operands.
#pragma once
#include <cstdint>
#include <vector>

#include "ir/program.h"

namespace ark::codegen {

inline bool is_sink(Opcode op) { return op == Opcode::kStore || op == Opcode::kYield; }
/// The instructions whose values it takes.
inline std::vector<int> inputs_of(const Instr& instr) {
  std::vector<int> inputs;
  for (const int input : {int{instr.a}, int{instr.b}, int{instr.c}, int{instr.d}})
    if (input >= 0) inputs.push_back(input);
  return inputs;
}

/// Whether a mask of operands has this one.
inline bool in_mask(uint32_t mask, int operand) { return operand >= 0 && operand < 32 && (mask >> operand & 1) != 0; }

}  // namespace ark::codegen
