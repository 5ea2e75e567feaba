// What a generated pointwise program says of its transposed operands (device/program/pointwise_blocks.cuh).
#pragma once
#include <cstdint>
#include <string>

#include "ir/program.h"

namespace ark::codegen {

/// Bytes of an element of each of these operands (a bit each), and of all together.
std::string transposed_source(const Program& program, uint32_t transposed);

}  // namespace ark::codegen
