// All boxes of an exchange as one tensor: a concatenation of what all ranks have sent, in their order, lies in memory
// as soon as it has come, for boxes lie side by side. Nothing is copied, and what reads it may begin with what is
// there.
#pragma once
#include <vector>

#include "planner/fuse/pieces.h"

namespace ark::planner {

/// The concatenations whose memory the boxes are; their pieces are the boxes.
std::vector<Pieces> joined_boxes(const State& state);

}  // namespace ark::planner
