// What abi.h allows of one op: lengths, widths and slots of its record.
#pragma once
#include <cstddef>

#include "plan/plan.h"

namespace ark::plan {

/// Of the op as the planner made it and of what its flags leave of it. Throws InternalError where it breaks a limit, or
/// UnsupportedError where its sizes or strides do not fit 32 bits.
void check_limits(const Plan& plan, size_t index);

}  // namespace ark::plan
