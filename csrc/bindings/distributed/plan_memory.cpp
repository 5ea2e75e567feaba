#include "bindings/distributed/plan_memory.h"

#include <algorithm>

#include "base/check.h"
#include "comm/agreement.h"
#include "planner/verify/rank_interface.h"
#include "targets/rank_memory.h"

namespace ark::bindings {

std::shared_ptr<PlanMemory> PlanMemories::at(const std::string& key, const plan::Plan& plan, comm::Store& store,
                                             const comm::GroupInfo& group, comm::Clock::time_point deadline) {
  auto find = [&]() -> std::shared_ptr<PlanMemory> {
    const std::lock_guard lock(mutex_);
    const auto found = of_key_.find(key);
    return found == of_key_.end() ? nullptr : found->second;
  };
  if (auto memory = find()) return memory;
  const std::lock_guard one_at_a_time(making_);
  if (auto memory = find()) return memory;  // another thread was first
  auto memory = make(plan, store, group, deadline);
  const std::lock_guard lock(mutex_);
  return of_key_[key] = memory;
}

std::shared_ptr<PlanMemory> PlanMemories::make(const plan::Plan& plan, comm::Store& store, const comm::GroupInfo& group,
                                               comm::Clock::time_point deadline) {
  const std::string tag = cat("plan-", made_++);
  std::vector<comm::Term> terms;
  for (planner::RankTerm& term : planner::rank_interface(plan)) terms.push_back({term.name, term.value});
  const std::string what = cat("plan '", plan.name, "' of group ", group.name);
  size_t bytes = 0;  // of the largest segment: what ranks do among themselves takes counters too
  for (const std::string& of_rank :
       comm::agree(store, group, tag, what, terms, cat(targets::rank_segment_bytes(plan)), deadline))
    bytes = std::max(bytes, static_cast<size_t>(std::stoull(of_rank)));
  auto memory = std::make_shared<PlanMemory>();
  const comm::GroupInfo of_plan{group.rank, group.world, cat(group.name, "-", tag)};
  memory->arena = std::make_unique<comm::HostArena>(store, of_plan, bytes, deadline);
  comm::forget_terms(store, group, tag);  // who has come as far as the arena has read them
  return memory;
}

void PlanMemories::close() {
  closing_ = true;
  const std::unique_lock nobody(uses_);
  of_key_.clear();
}

}  // namespace ark::bindings
