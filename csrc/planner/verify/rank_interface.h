// What the ranks of a plan with exchanges have to have in common: all that one of them does in the memory of another.
// Their plans may differ in the rest (a rank may know that an offset is 0).
#pragma once
#include <string>
#include <vector>

#include "plan/plan.h"

namespace ark::planner {

/// One such thing. `name` says what this rank calls it and is not compared.
struct RankTerm {
  std::string name, value;
};

/// Of every exchange of the group, in the order of the ops that send (an op may send for several), then of the group as
/// a whole: type, size and place of its boxes, and of each tile the bytes that it writes and the counters that it
/// arrives on.
std::vector<RankTerm> rank_interface(const plan::Plan& plan, int32_t group = 0);

/// Of an uneven exchange, what this rank stores for each rank and what it reads of each: these are compared in pairs.
struct RankParts {
  int64_t exchange = 0;  // its number in the plan
  std::string name;      // of the op that sends
  DType dtype = DType::kU8;
  std::vector<int64_t> out, in;  // bytes, by rank
};
std::vector<RankParts> rank_parts(const plan::Plan& plan);

}  // namespace ark::planner
