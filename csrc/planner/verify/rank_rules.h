// What a plan of all ranks and launches (ranks.h) is made by.
#pragma once

namespace ark::planner {

/// What ranks do beside what the plan says.
struct RankRules {
  /// Launches from which all others follow: who touches a box in launch e comes before who touches it in launch e + 2,
  /// and so before everybody in e + 4; launches of unequal parity share no box.
  int launches = 3;
  int box_sets = 2;      // launch e has boxes e % box_sets
  bool in_order = true;  // a rank begins a launch when it has ended the one before
};

}  // namespace ark::planner
