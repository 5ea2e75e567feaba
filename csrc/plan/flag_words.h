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
// the plan is flagged. The plan itself stays as it is: this is how plan::pack writes it for the loop kernel.
#pragma once
#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace ark::planner {

struct FlagWords {
  struct Op {
    uint32_t operands = 0;  // bit i: operand i is flagged (first 32)
    std::vector<abi::Wait> waits;
    std::vector<abi::Arrive> arrivals;
  };
  std::vector<int64_t> first_word;  // per buffer: of its element 0 in the words, or -1
  int64_t num_words = 0;            // 0: nothing is flagged, `ops` is empty
  std::vector<Op> ops;
};

FlagWords flag_words(const plan::Plan& plan);

/// Counters of a run and the lines (of abi::kCounterStride words) that its flagged words take behind them.
int64_t counter_lines(const plan::Plan& plan);

}  // namespace ark::planner
