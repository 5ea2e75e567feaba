// What is gathered for a large product is sent by an op of its own, which does nothing but copy, so that it goes on in
// the background (planner/background.h) while the product begins with the first rows.
#pragma once
#include <vector>

#include "planner/fuse/pieces.h"

namespace ark::planner {

/// Of exchanges whose boxes are read where they lie (joined_boxes.h): what they send is stored by the op that computes
/// it, and sent by another.
void send_apart(State& state, const std::vector<Pieces>& boxes);

}  // namespace ark::planner
