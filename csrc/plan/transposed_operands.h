// Operands of a pointwise task that are contiguous along the last but one dimension of its domain, not along the last:
// they go through tiles of shared memory (device/abi/transposed_tile.h). Strides say so, and the program, which reads
// them by their coordinates alone.
#pragma once
#include <algorithm>
#include <cstdint>

#include "device/abi/transposed_tile.h"
#include "plan/plan.h"

namespace ark::plan {

/// By an operand's strides along a dimension and along the domain's last one: contiguous along the first of them alone.
inline bool is_contiguous_across(int64_t along_dim, int64_t along_last) {
  return along_dim == 1 && along_last != 0 && along_last != 1;
}

/// Bytes of an element of an operand that the program loads; 0: it does not.
inline int loaded_bytes(const Program& program, int operand) {
  for (const Instr& in : program.instrs)
    if (in.op == Opcode::kLoad && in.operand == operand) return size_bytes(in.dtype);
  return 0;
}

/// Whether the program reads the operand at every coordinate of the domain, and nothing else of it.
inline bool is_read_everywhere(const Program& program, int operand) {
  bool loads = false;
  for (const Instr& in : program.instrs) {
    if (in.operand != operand) continue;
    if (in.op == Opcode::kLoad && in.a < 0 && in.b < 0 && in.c < 0)
      loads = true;
    else if (in.op == Opcode::kLoad || in.op == Opcode::kStore || in.op == Opcode::kLoadParts)
      return false;
  }
  return loads;
}

/// Of the operands in the mask, as many as tiles have room for.
inline uint32_t most_transposed(const Program& program, uint32_t operands) {
  uint32_t result = 0;
  int count = 0, bytes = 0;
  for (int i = 0; i < std::min(program.num_operands, 32); ++i) {
    if ((operands >> i & 1) == 0 || count == abi::kMostTransposed) continue;
    const int size = loaded_bytes(program, i);
    if (bytes + size > abi::kMostTransposedBytes) continue;
    result |= 1u << i;
    ++count, bytes += size;
  }
  return result;
}

/// As a mask, operand i of the program.
inline uint32_t transposed_operands(const Op& op, const Program& program) {
  const abi::ProgramParams& p = op.record.params.program;
  const int last = program.num_dims - 1;
  if (last < 1 || op.record.size[last] < abi::kLeastTransposed || op.record.size[last - 1] < abi::kLeastTransposed)
    return 0;
  uint32_t result = 0;
  for (int i = 0; i < std::min(program.num_operands, 32); ++i) {
    const auto at = static_cast<size_t>(p.first_operand + i);
    if (at >= op.operands.size() || op.operands[at].slot == abi::kNoSlot || op.operands[at].index_operand >= 0)
      continue;
    const auto& stride = op.operands[at].stride;
    if (is_contiguous_across(stride[last - 1], stride[last]) && is_read_everywhere(program, i)) result |= 1u << i;
  }
  return most_transposed(program, result);
}

}  // namespace ark::plan
