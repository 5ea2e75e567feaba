// An op as the GPU runs it (as_run.h).
#pragma once
#include <vector>

#include "device/abi/abi.h"

namespace ark::plan {

/// A record and its operands, as they lie one behind the other in the kernel's memory.
struct RunOp {
  abi::OpRecord record{};
  std::vector<abi::Operand> operands;
};

}  // namespace ark::plan
