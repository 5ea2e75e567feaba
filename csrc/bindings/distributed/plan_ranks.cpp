#include "bindings/distributed/plan_ranks.h"

#include <algorithm>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include "base/check.h"
#include "base/log.h"
#include "base/user_errors.h"
#include "bindings/distributed/process_group.h"
#include "bindings/distributed/support/c10d_store.h"
#include "comm/group_turns.h"

namespace ark::bindings {
namespace {

using GroupPtr = c10::intrusive_ptr<ProcessGroupArk>;

/// Null: no such group of tensors of this type, or it is another backend's.
GroupPtr find_group(const std::string& name, c10::DeviceType type) {
  try {
    const auto group = c10d::resolve_process_group(name);
    return c10::dynamic_intrusive_pointer_cast<ProcessGroupArk>(group->getBackend(type));
  } catch (const c10::Error&) {
    return {};
  }
}

}  // namespace

namespace {

GroupPtr group_of(const RankPlan& plan, int32_t number) {
  const std::string& name = number == 0 ? plan.plan.group : plan.plan.more_groups.at(number - size_t{1}).name;
  GroupPtr group = find_group(name, plan.device < 0 ? c10::DeviceType::CPU : c10::DeviceType::CUDA);
  check<DeviceError>(static_cast<bool>(group), "plan '", plan.plan.name, "' sends between the ranks of process group '",
                     name, "', which is not there (has it been destroyed?) or is not of backend ark");
  return group;
}

/// A launch in the memory of several groups, which it meets in the order of their names, the same on all ranks. It has
/// the longest time-out of the groups: its waits may be those of any.
class LaunchOfGroups {
 public:
  LaunchOfGroups(const RankPlan& plan, const PlanLaunch& launch)
      : plan_(plan), launch_(launch), key_(plan.key), groups_(static_cast<size_t>(num_groups(plan.plan))) {
    find_groups();
  }

  void run() {
    comm::launch_in_groups(
        order_.size(), [&](size_t place) { return meet(place); },
        [&](const std::vector<ProcessGroupArk::PlanTurn>& turns) { launch(turns); },
        [&](size_t place, const std::string& why) {
          if (const GroupPtr& group = at(place)) group->fail_plan(why);
        });
  }

 private:
  const GroupPtr& at(size_t place) const { return groups_[static_cast<size_t>(order_[place])]; }

  /// Those behind one that is not there as well: they hear of it.
  void find_groups() {
    for (size_t g = 0; g < groups_.size(); ++g) {
      try {
        groups_[g] = group_of(plan_, static_cast<int32_t>(g));
        key_ += cat(' ', groups_[g]->number());  // one that has been made anew has launches of its own
      } catch (const DeviceError&) {
        if (!missing_) missing_ = std::current_exception();
      }
    }
  }

  ProcessGroupArk::PlanTurn meet(size_t place) const {
    if (missing_) std::rethrow_exception(missing_);
    return at(place)->meet_plan({plan_.plan, key_, plan_.state_bytes, plan_.device, plan_.stream, order_[place]});
  }

  void launch(const std::vector<ProcessGroupArk::PlanTurn>& turns) const {
    std::vector<targets::RankMemory> views(turns.size());  // per group of the plan
    uint64_t deadline_ns = 0;
    for (size_t place = 0; place < turns.size(); ++place) {
      targets::RankMemory& view = views[static_cast<size_t>(order_[place])] = turns[place].view();
      deadline_ns = std::max(deadline_ns, view.deadline_ns);
    }
    targets::RankMemory all = views[0];
    all.deadline_ns = deadline_ns;
    all.more_groups.assign(views.begin() + 1, views.end());
    launch_(all);
    for (const ProcessGroupArk::PlanTurn& turn : turns) turn.launched();
  }

  const RankPlan& plan_;
  const PlanLaunch& launch_;
  std::string key_;
  std::vector<GroupPtr> groups_;  // of the plan; null: it is not there
  std::exception_ptr missing_;
  const std::vector<int32_t> order_ = plan::groups_by_name(plan_.plan);
};

}  // namespace

void run_with_ranks(const RankPlan& plan, const PlanLaunch& launch) {
  if (plan.plan.more_groups.empty()) return group_of(plan, 0)->run_plan(plan, launch);
  LaunchOfGroups(plan, launch).run();
}

void fail_group(const std::string& group, const std::string& why) {
  for (const c10::DeviceType type : {c10::DeviceType::CPU, c10::DeviceType::CUDA})
    if (const GroupPtr found = find_group(group, type)) return found->fail_plan(why);
}

/// What the ranks of this launch hear of each other.
targets::RankMemory ProcessGroupArk::view_of(const PlanMemory& memory) {
  targets::RankMemory view;
  view.segments = memory.segments;
  view.fresh = memory.fresh;
  view.rank = getRank();
  view.part_bytes = memory.part_bytes, view.parts = memory.parts;
  view.deadline_ns = static_cast<uint64_t>(std::chrono::nanoseconds(timeout_.load()).count());
  view.absence = [this](int rank) -> std::string {
    if (const std::string failure = channel_->failure(rank); !failure.empty()) return cat("failed: ", failure);
    if (rank != getRank()) return channel_->absence(rank);
    return plans_.closing() ? "has destroyed the group" : "";
  };
  view.give_up = [this](const std::string& why) { give_up_plans(why); };
  return view;
}

std::shared_ptr<PlanMemory> ProcessGroupArk::plan_memory(const RankPlan& plan) {
  const comm::StepChannel::Scope scope{cat("plan '", plan.plan.name, "' of group ", name_), {}};
  C10dStore store(store_);
  store.watch([&](int peer) {
    check<comm::CancelledError>(!plans_.closing(), scope.what, ": the group was destroyed");
    channel_->check_peer(scope, peer);
  });
  try {
    return plans_.at(plan, store, {getRank(), getSize(), name_}, comm::Clock::now() + timeout_.load());
  } catch (const UserError&) {
    throw;  // all ranks see that their plans differ
  } catch (const std::exception& error) {
    channel_->fail(error.what());
    throw;
  }
}

/// What finds the memory of a launch: all that ranks run in it. In a graph with an all-to-all, sizes may be a rank's
/// own: a peer may come with a new plan, or call the collectives, while this rank comes with the same one. So ranks
/// meet first, for each launch: what the splits are here says nothing of a peer's.
std::string ProcessGroupArk::meet_for(const RankPlan& plan) {
  if (plan.plan.splits.find_first_not_of('-') == std::string::npos) return plan.key;
  const auto turn_of_calls = turn("plan");
  const comm::StepChannel::Scope scope{cat("plan '", plan.plan.name, "' of group ", name_),
                                       comm::Clock::now() + timeout_.load()};
  try {
    const comm::StepChannel::Meeting meeting =
        channel_->meet(plans_.note_of(plan), scope, [this] { return plans_.closing(); });
    if (!meeting.apart.empty()) throw RanksApart(cat(scope.what, ": ", meeting.apart));
    std::string key = cat("met ", plan.key);
    for (const comm::LaunchNote& note : meeting.of_ranks) key += cat(' ', note.plan);
    return key;
  } catch (const comm::CancelledError&) {
    throw;
  } catch (const DeviceError& error) {
    channel_->fail(error.what());
    throw;
  }
}

void ProcessGroupArk::run_plan(const RankPlan& plan, const PlanLaunch& launch) {
  PlanTurn turn = meet_plan(plan);
  try {
    turn.take();
    launch(turn.view());
    turn.launched();
  } catch (const IndexOutOfRange&) {
    throw;  // its launch has ended
  } catch (const std::exception& error) {
    give_up_plans(error.what());
    throw;
  }
}

ProcessGroupArk::PlanTurn ProcessGroupArk::meet_plan(const RankPlan& plan) {
  PlanTurn turn(*this, plan);
  check_open("plan");
  check<UserError>(world_of(plan.plan, plan.group) == getSize(), "plan '", plan.plan.name, "' is of ",
                   world_of(plan.plan, plan.group), " ranks, group ", name_, " has ", getSize());
  channel_->check_failures({cat("plan '", plan.plan.name, "' of group ", name_), {}});
  const std::string key = meet_for(plan);
  turn.memory_ = plan_memory({plan.plan, key, plan.state_bytes, plan.device, plan.stream, plan.group});
  return turn;
}

void ProcessGroupArk::PlanTurn::take() {
  check<UserError>(device_ == memory_->device, "plan '", name_, "' of group ", group_->name_,
                   ": its memory is on cuda:", memory_->device,
                   " (where the first launch was), got a launch on cuda:", device_);
  of_memory_ = std::unique_lock(memory_->turn);
  if (device_ < 0) return;
  check<UnsupportedError>(group_->cuda_ != nullptr, "plan '", name_, "': group ", group_->name_, " has no CUDA side");
  on_gpu_ = group_->cuda_->take_turn(device_, stream_);
}

void ProcessGroupArk::fail_plan(const std::string& why) {
  const auto use = plans_.use();
  if (closed_ || process_ != ::getpid()) return;
  give_up_plans(why);
}

/// Peers hear of it on the host; launches that wait on GPUs look at their abort words alone.
void ProcessGroupArk::give_up_plans(const std::string& why) {
  channel_->fail(why);
  try {
    plans_.abort(getRank());
  } catch (const std::exception& error) {
    log::warn("process group ", name_, " does not end launches that wait: ", error.what());
  }
}

}  // namespace ark::bindings
