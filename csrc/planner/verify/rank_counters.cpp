#include "planner/verify/rank_counters.h"

#include <algorithm>

#include "planner/verify/checks.h"
#include "planner/verify/counter_blocks.h"

namespace ark::planner {

using plan::Plan;

std::vector<CounterSource> counter_sources(const Plan& plan) {
  std::vector<CounterSource> sources(static_cast<size_t>(plan.num_counters));
  for (size_t index = 0; index < plan.ops.size(); ++index) {
    const abi::OpRecord& r = plan.ops[index].record;
    for (int a = 0; a < r.num_arrivals; ++a) {
      const int64_t stride = r.arrive_rank_stride[a];
      for (int32_t rank = stride == 0 ? kOwnRank : 0; rank < (stride == 0 ? 0 : plan.world); ++rank) {
        const int64_t first = int64_t{r.arrive[a].counter} + (stride == 0 ? 0 : rank * stride);
        for (int64_t k = first; k < first + num_counters(r.arrive[a]); ++k) {
          auto name = [&] { return cat(describe(plan, static_cast<int64_t>(index)), ", arrival ", a); };
          require(plan, k >= 0 && k < plan.num_counters, name(), " of rank ", rank, " reaches counter ", k, " of ",
                  plan.num_counters);
          CounterSource& source = sources[static_cast<size_t>(k)];
          require(plan, source.op < 0 || source.rank == rank, name(), " of rank ", rank, " falls on counter ", k,
                  ", which counts rank ", source.rank, " in ", describe(plan, std::max(source.op, 0)),
                  " (-1: each its own)");
          source = {static_cast<int32_t>(index), rank};
        }
      }
    }
  }
  return sources;
}

std::vector<CounterBlock> awaited_counters(const Plan& plan, const std::vector<CounterSource>& sources, size_t op,
                                           int w) {
  const abi::Wait& wait = plan.ops[op].record.wait[w];
  const bool all = wait.rank_stride != 0;
  std::vector<CounterBlock> blocks;
  for (int32_t rank = 0; rank < (all ? plan.world : 1); ++rank) {
    const int64_t first = int64_t{wait.counter} + int64_t{rank} * wait.rank_stride, count = num_counters(wait);
    auto name = [&] { return cat(describe(plan, static_cast<int64_t>(op)), ", wait ", w); };
    require(plan, first >= 0 && first + count <= plan.num_counters, name(), " for rank ", rank, " reaches counter ",
            first + count - 1, " of ", plan.num_counters);
    const int32_t source = count == 0 ? kOwnRank : sources[static_cast<size_t>(first)].rank;
    for (int64_t k = first; k < first + count; ++k)
      require(plan, sources[static_cast<size_t>(k)].rank == source, name(), ": counter ", first, " counts rank ",
              source, ", counter ", k, " rank ", sources[static_cast<size_t>(k)].rank, " (-1: each its own)");
    require(plan, !all || count == 0 || source != kOwnRank, name(), " for rank ", rank, ": counter ", first,
            " counts tiles of each rank's own");
    blocks.push_back({source, static_cast<int32_t>(first), static_cast<int32_t>(count)});
  }
  return blocks;
}

}  // namespace ark::planner
