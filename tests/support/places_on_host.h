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

}  // namespace ark::test
