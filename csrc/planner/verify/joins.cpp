#include "planner/verify/joins.h"

#include <algorithm>
#include <vector>

#include "plan/row_map.h"

namespace ark::planner {

int64_t new_counters(plan::Plan& plan, int32_t count) {
  plan.num_counters += count;
  return plan.num_counters - count;
}

abi::Wait wait_for_counters(int64_t counter, int32_t count, uint32_t target) {
  abi::Wait wait{};
  wait.counter = static_cast<uint32_t>(counter);
  wait.coef[0] = count == 1 ? 0 : 1;
  wait.extent = wait.div = 1;
  wait.limit = count;
  wait.target = wait.last_target = target;
  wait.role = static_cast<int32_t>(abi::WaitRole::kAll);
  return wait;
}

namespace {

int64_t add_join(plan::Plan& plan, const std::string& name, int32_t tiles, std::span<const abi::Wait> waits) {
  plan::Op& join = plan.ops.emplace_back();
  join.name = name;
  join.programs = {static_cast<int32_t>(plan.programs.size()) - 1};
  abi::OpRecord& r = join.record;
  r.kind = abi::TaskKind::kPointwise;
  std::fill(std::begin(r.size), std::end(r.size), 1);
  r.size[0] = r.grid[abi::GridAxis::kOuter] = tiles, r.grid[abi::GridAxis::kMiddle] = r.grid[abi::GridAxis::kInner] = 1;
  abi::ProgramParams& params = r.params.program;
  params.program = join.programs[0];
  params.num_dims = params.tile = params.split = params.num_rows = params.row_size = 1;
  std::copy(waits.begin(), waits.end(), r.wait);
  r.num_waits = static_cast<int32_t>(waits.size());
  const int64_t counter = new_counters(plan, tiles);
  r.arrive[r.num_arrivals++] = plan::row_map(wait_for_counters(counter, tiles, 1));
  return counter;
}

}  // namespace

int64_t add_joins(plan::Plan& plan, const std::string& name, int32_t tiles, std::span<const abi::Wait> waits) {
  std::vector<abi::Wait> now;
  while (true) {  // a join waits for the one before
    const size_t count = std::min(waits.size(), abi::kMaxWaits - now.size());
    now.insert(now.end(), waits.begin(), waits.begin() + static_cast<std::ptrdiff_t>(count));
    waits = waits.subspan(count);
    const int64_t counter = add_join(plan, name, tiles, now);
    if (waits.empty()) return counter;
    now = {wait_for_counters(counter, tiles, 1)};
  }
}

}  // namespace ark::planner
