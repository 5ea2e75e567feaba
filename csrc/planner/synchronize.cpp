#include "planner/synchronize.h"

#include <algorithm>
#include <set>

#include "base/check.h"
#include "planner/depend.h"

namespace ark::planner {

void synchronize(Draft& draft, const Options& options) {
  std::vector<FusedOp>& ops = draft.graph.ops;
  const auto needs = dependences(draft.graph);
  std::vector<int> counter(ops.size(), -1);
  std::vector<std::vector<bool>> done(ops.size());  // ops that are finished before any tile of the op starts
  for (int i = 0; i < static_cast<int>(ops.size()); ++i) {
    std::set<int, std::greater<>> before;
    for (const Dependence& need : needs[i]) before.insert(need.before);
    if (options.schedule == Schedule::kSequential && i > 0) before.insert(i - 1);
    done[i].assign(ops.size(), false);
    abi::OpRecord& record = ops[i].op.record;
    record.num_waits = 0;
    for (int p : before) {
      if (done[i][p]) continue;
      check(record.num_waits < abi::kMaxWaits, "op '", ops[i].op.name, "' needs more than ", abi::kMaxWaits, " waits");
      if (counter[p] < 0) counter[p] = draft.num_counters++;
      const uint32_t target = static_cast<uint32_t>(num_tiles(ops[p].op.record));
      record.wait[record.num_waits++] = {
          static_cast<uint32_t>(counter[p]), 0, {0, 0, 0}, 1, 1, 1, target, target, 0, 0};
      done[i][p] = true;
      for (size_t q = 0; q < ops.size(); ++q) {
        if (done[p][q]) done[i][q] = true;
      }
    }
  }
  for (size_t i = 0; i < ops.size(); ++i) {
    ops[i].op.record.num_arrivals = 0;
    if (counter[i] < 0) continue;
    ops[i].op.record.num_arrivals = 1;
    ops[i].op.record.arrive[0] = {static_cast<uint32_t>(counter[i]), 0, {0, 0, 0}, 1, 1, 1};
  }
}

}  // namespace ark::planner
