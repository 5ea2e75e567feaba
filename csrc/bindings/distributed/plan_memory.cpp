#include "bindings/distributed/plan_memory.h"

#include <algorithm>
#include <cstddef>

#include "base/check.h"
#include "bindings/distributed/plan_parts.h"
#include "comm/agreement.h"
#include "planner/verify/rank_interface.h"
#include "targets/rank_memory.h"

namespace ark::bindings {

std::shared_ptr<PlanMemory> PlanMemories::at(const RankPlan& plan, comm::Store& store, const comm::GroupInfo& group,
                                             comm::Clock::time_point deadline) {
  const std::string& key = plan.key;
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

namespace {

void map_host(PlanMemory& memory, comm::Store& store, const comm::GroupInfo& group, size_t bytes,
              comm::Clock::time_point deadline) {
  memory.arena = std::make_unique<comm::HostArena>(store, group, bytes, deadline);
  for (int rank = 0; rank < group.world; ++rank) memory.segments.push_back(memory.arena->data(rank));
}

/// Afterwards nothing is asked of the store.
void map_gpu(PlanMemory& memory, const RankPlan& plan, comm::Store& store, const comm::GroupInfo& group, size_t bytes,
             comm::Clock::time_point deadline) {
  memory.device = plan.device;
  memory.gpu = cuda::open_gpu(plan.device);
  memory.on_gpu = std::make_unique<comm::SymmetricMemory>(store, group, memory.gpu, "boxes", bytes);
  memory.on_gpu->offer();
  for (int rank = 0; rank < group.world; ++rank) {
    auto* segment = reinterpret_cast<std::byte*>(memory.on_gpu->of(rank, deadline));
    memory.segments.push_back(segment);
    memory.states.push_back(
        reinterpret_cast<cuda::DevicePtr>(targets::rank_state(plan.plan, segment, memory.part_bytes, plan.group)));
  }
  memory.on_gpu->settle(deadline);
}

}  // namespace

std::shared_ptr<PlanMemory> PlanMemories::make(const RankPlan& plan, comm::Store& store, const comm::GroupInfo& group,
                                               comm::Clock::time_point deadline) {
  const std::string tag = cat("plan-", made_++);
  std::vector<comm::Term> terms;
  terms.push_back({"where it runs", plan.device < 0 ? "on CPUs" : "on GPUs"});
  for (planner::RankTerm& term : planner::rank_interface(plan.plan, plan.group))
    terms.push_back({term.name, term.value});
  const std::string what = cat("plan '", plan.plan.name, "' of group ", group.name);
  size_t bytes = 0;  // of the largest segment: what ranks do among themselves takes counters too
  const RankSays own{targets::rank_segment_bytes(plan.plan, plan.state_bytes, 0, plan.group),
                     planner::rank_parts(plan.plan)};
  std::vector<std::vector<planner::RankParts>> parts;  // by rank
  for (const std::string& of_rank : comm::agree(store, group, tag, what, terms, encode(own), deadline)) {
    RankSays said = decode(of_rank);
    bytes = std::max(bytes, said.segment_bytes);
    parts.push_back(std::move(said.parts));
  }
  auto memory = std::make_shared<PlanMemory>();
  PartLayout layout = place_parts(parts, group.rank, box_bytes_of(plan.plan, plan.group), what);
  memory->part_bytes = layout.bytes, memory->parts = std::move(layout.parts);
  bytes += 2 * static_cast<size_t>(layout.bytes);
  const comm::GroupInfo of_plan{group.rank, group.world, cat(group.name, "-", tag)};
  if (plan.device < 0)
    map_host(*memory, store, of_plan, bytes, deadline);
  else
    map_gpu(*memory, plan, store, of_plan, bytes, deadline);
  comm::forget_terms(store, group, tag);  // who has mapped the memory has read them
  return memory;
}

comm::LaunchNote PlanMemories::note_of(const RankPlan& plan) {
  const std::lock_guard lock(mutex_);
  const auto [found, first] = notes_.try_emplace(plan.key);
  if (first) found->second = launch_note(plan.plan, plan.key);
  return found->second;
}

void PlanMemories::close() {
  closing_ = true;
  const std::unique_lock nobody(uses_);
}

/// By copies: what fills memory may be a kernel, for which launches that wait leave no room.
void PlanMemories::abort(int rank) {
  const std::lock_guard lock(mutex_);
  const abi::u32 who = static_cast<abi::u32>(rank) + 1;
  for (const auto& [key, memory] : of_key_)
    for (const cuda::DevicePtr state : memory->states)
      cuda::upload_and_wait(memory->gpu.context, state + offsetof(abi::RunState, abort), &who, sizeof who);
}

void PlanMemories::clear() {
  const std::lock_guard lock(mutex_);
  for (const auto& [key, memory] : of_key_)
    if (memory->on_gpu) cuda::wait_for_all(memory->gpu.context);  // replays of captured launches, too
  of_key_.clear();
}

}  // namespace ark::bindings
