// What the record of a pointwise, row or column op says beside what the planner wrote: what follows from it, so that no
// item of the loop kernel works it out again (abi::ProgramParams, from `whole` on). Sizes stay data.
#pragma once
#include "plan/plan.h"
#include "plan/run_op.h"

namespace ark::plan {

/// Fills in these fields of an op as the GPU runs it, of `program`. Flags and boxes have been applied.
void set_pointwise_form(const Program& program, RunOp& run);

}  // namespace ark::plan
