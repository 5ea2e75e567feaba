// Sums of what ranks have sent, stored by the product that sends next.
//
// The prologue of a few-row product adds the boxes of an exchange to a residual, in every worker, and cannot store the
// sum. So the next prologues would add them again, those of all layers before, until an op has no room for more. The
// product that sends the next exchange has the sum's shape, and its epilogue a thread for each element: it adds and
// stores too. Whoever comes before it computes the sum, whoever comes behind it reads it.
#pragma once
#include "planner/fuse/state.h"

namespace ark::planner {

/// After make_groups: moves such sums to the group of that product and notes it in State::kept_by.
void keep_sums(State& state);

}  // namespace ark::planner
