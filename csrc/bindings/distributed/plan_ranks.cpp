#include "bindings/distributed/plan_ranks.h"

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include "base/check.h"
#include "bindings/distributed/process_group.h"
#include "bindings/distributed/support/c10d_store.h"

namespace ark::bindings {
namespace {

using GroupPtr = c10::intrusive_ptr<ProcessGroupArk>;

/// Null: no such group of CPU tensors, or it is another backend's.
GroupPtr find_group(const std::string& name) {
  try {
    const auto group = c10d::resolve_process_group(name);
    return c10::dynamic_intrusive_pointer_cast<ProcessGroupArk>(group->getBackend(c10::DeviceType::CPU));
  } catch (const c10::Error&) {
    return {};
  }
}

}  // namespace

void run_with_ranks(const plan::Plan& plan, const std::string& key,
                    const std::function<void(const targets::RankMemory&)>& launch) {
  const GroupPtr group = find_group(plan.group);
  check<DeviceError>(static_cast<bool>(group), "plan '", plan.name, "' sends between the ranks of process group '",
                     plan.group, "', which is not there (has it been destroyed?) or is not of backend ark");
  group->run_plan(plan, key, launch);
}

void fail_group(const std::string& group, const std::string& why) {
  if (const GroupPtr found = find_group(group)) found->fail_plan(why);
}

/// What the ranks of this launch hear of each other.
targets::RankMemory ProcessGroupArk::view_of(const PlanMemory& memory) {
  targets::RankMemory view;
  for (int rank = 0; rank < getSize(); ++rank) view.segments.push_back(memory.arena->data(rank));
  view.rank = getRank();
  view.deadline_ns = static_cast<uint64_t>(std::chrono::nanoseconds(timeout_.load()).count());
  view.absence = [this](int rank) -> std::string {
    if (const std::string failure = channel_->failure(rank); !failure.empty()) return cat("failed: ", failure);
    if (rank != getRank()) return channel_->absence(rank);
    return plans_.closing() ? "has destroyed the group" : "";
  };
  view.give_up = [this](const std::string& why) { channel_->fail(why); };
  return view;
}

std::shared_ptr<PlanMemory> ProcessGroupArk::plan_memory(const std::string& key, const plan::Plan& plan) {
  const comm::StepChannel::Scope scope{cat("plan '", plan.name, "' of group ", name_), {}};
  C10dStore store(store_);
  store.watch([&](int peer) {
    check<comm::CancelledError>(!plans_.closing(), scope.what, ": the group was destroyed");
    channel_->check_peer(scope, peer);
  });
  try {
    return plans_.at(key, plan, store, {getRank(), getSize(), name_}, comm::Clock::now() + timeout_.load());
  } catch (const UserError&) {
    throw;  // all ranks see that their plans differ
  } catch (const std::exception& error) {
    channel_->fail(error.what());
    throw;
  }
}

void ProcessGroupArk::run_plan(const plan::Plan& plan, const std::string& key, const PlanLaunch& launch) {
  const auto use = plans_.use();
  check_open("plan");
  check<UserError>(plan.world == getSize(), "plan '", plan.name, "' is of ", plan.world, " ranks, group ", name_,
                   " has ", getSize());
  channel_->check_failures({cat("plan '", plan.name, "' of group ", name_), {}});
  const std::shared_ptr<PlanMemory> memory = plan_memory(key, plan);
  const std::lock_guard turn(memory->turn);
  launch(view_of(*memory));
}

void ProcessGroupArk::fail_plan(const std::string& why) {
  const auto use = plans_.use();
  if (closed_ || process_ != ::getpid()) return;
  channel_->fail(why);
}

}  // namespace ark::bindings
