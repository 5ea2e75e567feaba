// Names of task kinds for people: statistics, traces.
#pragma once
#include "device/abi.h"

namespace ark::runtime {

/// "pointwise", "matmul_tile", ...
const char* task_name(abi::TaskKind kind);

}  // namespace ark::runtime
