// For tests that compile places of pointwise items (csrc/device/program/*_places.cuh) for the host: comes before them.
#pragma once
#include <algorithm>
#include <vector>

#define __device__
#define __forceinline__ inline
namespace ark::device {
using std::max;
using std::min;
}  // namespace ark::device
#include "device/abi/abi.h"

namespace ark::test {

/// As plan::run_op does.
inline void set_divisors(abi::OpRecord& record) {
  for (int d = 0; d < abi::kMaxDims; ++d)
    record.params.program.by[d] = abi::divisor_of(static_cast<unsigned>(std::max(record.size[d], 1ll)));
}

/// As a program says them: two bits an operand.
inline abi::u64 operand_shifts(const std::vector<int>& dtypes) {
  abi::u64 shifts = 0;
  for (size_t i = 0; i < dtypes.size(); ++i) shifts |= (0x3211321000ull >> (4 * dtypes[i]) & 3) << (2 * i);
  return shifts;
}

struct FakeTask {
  const abi::OpRecord* record;
};
struct FakeContext {
  FakeTask task;
  std::vector<abi::Operand> operands;
  const abi::Operand& operand(int i) const { return operands[static_cast<size_t>(i)]; }
};

/// Of a program that copies: operand 0 is transposed, operand 1 is written.
template <int kRank, int kBytes, int kLength>
struct CopyingProgram {
  static constexpr int kDims = kRank, kNumOperands = 2, kTransposedBytes = kBytes, kVector = kLength;
  static constexpr int kShift = kBytes == 8 ? 3 : kBytes / 2;
  static constexpr abi::u64 kOperandShifts = kShift * 5;  // of both operands
  static constexpr int transposed_size(int operand) { return operand == 0 ? kBytes : 0; }
};

/// Makes the record and the operands of such an op over c.sizes. Operand 0 has c.strides and lies in `memory` from byte
/// c.offset on, operand 1 has rows of c.pitch elements and begins c.phase elements behind `base`, where memory[0] is.
template <class Case>
void lay_out_copy(const Case& c, int size, int vector, abi::i64 base, abi::OpRecord& record, FakeContext& context,
                  std::vector<unsigned char>& memory) {
  const int dims = static_cast<int>(c.sizes.size());
  std::copy(c.sizes.begin(), c.sizes.end(), record.size);
  set_divisors(record);
  abi::i64 last = c.offset;
  for (int d = 0; d < dims; ++d) last += (c.sizes[d] - 1) * c.strides[d] * size;
  memory.resize(static_cast<size_t>((last + size + 15) / 16 * 16));
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<unsigned char>(i * 37 + i / 251);
  abi::Operand &in = context.operands[0], &out = context.operands[1];
  in.dtype = out.dtype = size == 1 ? abi::kTypeBool : size == 2 ? abi::kTypeBF16 : size == 4 ? 8 : 9;
  in.offset = base + c.offset;
  in.vector = 1;
  std::copy(c.strides.begin(), c.strides.end(), in.stride);
  out.offset = base + c.phase * size;
  out.vector = static_cast<signed char>(std::min(vector, 16 / size));
  abi::i64 step = c.pitch;
  out.stride[dims - 1] = 1;
  for (int d = dims - 2; d >= 0; --d) out.stride[d] = step, step *= c.sizes[d];
}

}  // namespace ark::test
