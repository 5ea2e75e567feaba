// Concatenations that are written by pieces: one that has to be in memory is computed by nobody. Each of its pieces
// becomes a value whose memory is a slice of the concatenation's, stored like any other value by whoever computes it.
#pragma once
#include <vector>

#include "planner/fuse/state.h"

namespace ark::planner {

/// A concatenation and the values that write it.
struct Pieces {
  int value = -1;
  std::vector<int> pieces;
};

/// Of the concatenations that are forced into memory, and of what pointwise nodes make of one, those that are worth the
/// ops; a piece of each becomes a value of the graph, a copy of what is joined. Nothing else of `state` than the graph
/// is changed: it has to be read anew.
/// `boxes`: concatenations that are there when others have sent (joined_boxes.h).
std::vector<Pieces> split_concatenations(State& state, const std::vector<Pieces>& boxes);
/// Says in the state where the pieces lie. Rows may have been padded since the split.
void place_pieces(State& state, const std::vector<Pieces>& all);

}  // namespace ark::planner
