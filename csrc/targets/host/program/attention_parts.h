// The parts that a decode attention leaves when a kv head's keys are split, and their combination (Opcode::kLoadParts).
#pragma once
#include <cstdint>
#include <span>

#include "device/abi/abi.h"

namespace ark::targets::host {

/// Keys [begin, end) of part `part` when [first, last) are cut into equal parts: as many as have positions_per_part
/// keys, at least 1 and at most `parts`. Parts beyond those used are empty.
struct KeyRange {
  int64_t begin = 0, end = 0;
};
int64_t parts_used(KeyRange visible, int64_t parts, int64_t positions_per_part);
KeyRange keys_of_part(KeyRange visible, int64_t part, int64_t parts, int64_t positions_per_part);

/// out[i] = the attention's result at (row[i], column[i]); `operands` are the four that Opcode::kLoadParts describes.
void load_parts(std::span<const abi::Operand> operands, void* const* slots, const int64_t* row, const int64_t* column,
                int64_t n, float* out);

}  // namespace ark::targets::host
