// Selections (kWhere) one of whose arms is much work that nothing else needs, as the noise of a draw is where most
// tokens are taken away: a vector none of whose elements takes the arm does not compute it.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "ir/program.h"

namespace ark::codegen {

struct LazyArm {
  int selection = -1, value = -1;  // the kWhere; its arm
  bool taken_if = true;            // what the condition is where the arm is taken
  std::vector<int> instrs;         // that only the arm needs, in order; `value` is the last
};

/// Of the instructions that are needed. `movable`: those that may stand behind a branch: no scalars, no accesses.
std::vector<LazyArm> lazy_arms(const Program& program, const std::vector<bool>& needed,
                               const std::function<bool(int)>& movable);

/// What declares r<value> of an arm, of elements that take it. `condition`: of element i. `body` computes the arm.
std::string lazy_source(const LazyArm& arm, const std::string& type, const std::string& condition,
                        const std::string& body);

}  // namespace ark::codegen
