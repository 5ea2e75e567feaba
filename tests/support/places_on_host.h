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

struct FakeTask {
  const abi::OpRecord* record;
};
struct FakeContext {
  FakeTask task;
  std::vector<abi::Operand> operands;
  const abi::Operand& operand(int i) const { return operands[static_cast<size_t>(i)]; }
};

}  // namespace ark::test
