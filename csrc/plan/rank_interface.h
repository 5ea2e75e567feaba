// What the ranks of a plan with exchanges have to have in common: all that one of them does in the memory of another.
// Their plans may differ in the rest (a rank may know that an offset is 0).
#pragma once
#include <string>
#include <vector>

#include "plan/plan.h"

namespace ark::plan {

/// One such thing. `name` says what this rank calls it and is not compared.
struct RankTerm {
  std::string name, value;
};

/// Of the plan as a whole, then of every op that sends, in their order: where its boxes lie, their type and sizes, which
/// part of them a tile writes, on which counters it arrives.
std::vector<RankTerm> rank_interface(const Plan& plan);

}  // namespace ark::plan
