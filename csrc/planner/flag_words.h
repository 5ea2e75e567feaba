// Words that carry their own flag, for the vectors that few-row products hand to each other (m = 1, 16-bit types).
//
// A counter costs two trips through L2 more than the data: the writer waits until its stores are there before it
// counts, the reader sees the count before it asks for the data. Such a vector travels as 32-bit words instead: the
// element in the upper half, the launch's number in the lower; readers poll the words themselves (1.1 to 1.7 us less
// per op of a decode step). The words lie behind the counters of the run: zeroed once, never used for anything else.
//
// A relaxed word orders nothing but itself. So a wait is dropped only when everything that the op reads of its
// producers comes in such words, and what else the op shares with earlier ops (memory that is reused, caches, tables)
// must be ordered by the waits that are left, op by op; waits are added where it is not. Where that fails, no vector of
// the plan is flagged. Waits that those left mean are dropped, and waits for several counters split where an op can ask
// for all its counters at once then. Records keep their waits and arrivals, which the host target runs with; what the
// loop kernel does otherwise stands beside them (plan::Flags).
#pragma once
#include "plan/plan.h"

namespace ark::planner {

/// Chooses the flagged words of a plan: Buffer::first_word, Op::flags, Plan::num_flag_words.
void flag_words(plan::Plan& plan);

}  // namespace ark::planner
