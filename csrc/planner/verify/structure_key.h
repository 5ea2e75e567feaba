// What two plans must have in common so that a proof of one speaks for the other: everything but the lengths that grow
// with the sizes.
//
// Equal keys mean: the same ops, programs, operands and buffers in the same order; the same waits and arrivals, between
// the same ops, that depend on the same grid coordinates; blocks that divide their axes in the same way (evenly or
// with a rest, one position or several); and the same pairs of buffers in the same bytes of the arena.
#pragma once
#include <cstdint>

#include "plan/plan.h"

namespace ark::planner {

uint64_t structure_key(const plan::Plan& plan);

}  // namespace ark::planner
