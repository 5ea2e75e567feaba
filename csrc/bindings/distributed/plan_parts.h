// Uneven exchanges of a plan: what ranks tell each other of their sizes, and where the parts lie.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "comm/step_channel.h"
#include "planner/verify/rank_interface.h"
#include "targets/rank_memory.h"

namespace ark::bindings {

/// What a rank says besides the terms that are compared word for word.
struct RankSays {
  size_t segment_bytes = 0;  // without parts
  std::vector<planner::RankParts> parts;
};
std::string encode(const RankSays& says);
RankSays decode(const std::string& text);

/// What a rank says of such a plan before each launch. `key` is the plan's own (RankPlan).
comm::LaunchNote launch_note(const plan::Plan& plan, const std::string& key);

/// Behind the boxes: regions of one exchange after the other, each as large as the rank that gets most needs it, and in
/// it the parts by the rank that stores them. Only so much of it has to be the same on all ranks.
struct PartLayout {
  int64_t bytes = 0;
  std::map<int64_t, targets::PartPlaces> parts;
};
/// `of_ranks`: what each rank says. Throws RanksDisagree where what one stores for another is not what that one reads:
/// on every rank the first such pair. `what` begins the text.
PartLayout place_parts(const std::vector<std::vector<planner::RankParts>>& of_ranks, int rank, int64_t box_bytes,
                       const std::string& what);

}  // namespace ark::bindings
