#include "bindings/distributed/plan_memory.h"

#include "base/check.h"
#include "comm/agreement.h"
#include "plan/rank_interface.h"
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
  for (plan::RankTerm& term : plan::rank_interface(plan)) terms.push_back({term.name, term.value});
  comm::agree(store, group, tag, cat("plan '", plan.name, "' of group ", group.name), terms, deadline);
  auto memory = std::make_shared<PlanMemory>();
  const comm::GroupInfo of_plan{group.rank, group.world, cat(group.name, "-", tag)};
  memory->arena = std::make_unique<comm::HostArena>(store, of_plan, targets::rank_segment_bytes(plan), deadline);
  comm::forget_terms(store, group, tag);  // who has come as far as the arena has read them
  return memory;
}

void PlanMemories::close() {
  closing_ = true;
  const std::lock_guard none_made(making_);
  std::map<std::string, std::shared_ptr<PlanMemory>> last;
  {
    const std::lock_guard lock(mutex_);
    last.swap(of_key_);
  }
  for (auto& [key, memory] : last) const std::lock_guard launch_ended(memory->turn);
}

}  // namespace ark::bindings
