// What a pointwise program's struct says of its operands (device/program/operand_sizes.cuh).
#pragma once
#include <cstdint>
#include <string>

#include "ir/program.h"

namespace ark::codegen {

/// kOperandShifts: of operand i, two bits, the logarithm of its element's bytes (accesses of an operand have one type).
/// kScalars: the operands of `broadcast`, which are loaded once a vector.
std::string operand_sizes_source(const Program& program, uint32_t broadcast);

}  // namespace ark::codegen
