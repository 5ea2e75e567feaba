// Boxes that several exchanges of a launch have one after the other. Whoever sends writes the boxes of other ranks, so
// that waits of its own rank do not order it behind their readers: an exchange in between has to.
#pragma once
#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace ark::planner {

/// Two exchanges with bytes in common.
struct BoxReuse {
  int32_t earlier = -1, later = -1;  // ops that send
  int32_t witness = -1;  // sent by each rank after all its ops that touch the earlier boxes; `later` starts when it has
                         // seen this come from all ranks. The first such op; -1: none
};

/// By later, then earlier.
std::vector<BoxReuse> box_reuses(const plan::Plan& plan);

}  // namespace ark::planner
