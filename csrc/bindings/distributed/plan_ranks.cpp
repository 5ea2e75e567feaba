#include "bindings/distributed/plan_ranks.h"

#include <algorithm>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include "base/check.h"
#include "base/log.h"
#include "base/user_errors.h"
#include "bindings/distributed/process_group.h"
#include "bindings/distributed/support/c10d_store.h"

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

/// A launch in the memory of several groups. Ranks meet in one group after the other, in the order of their names,
/// which is the same on all ranks: so no two wait for each other. On a GPU it takes its turn in each of them so too
/// (run_plan), and has the turns of all when it is put into its stream. A group that is left before the launch begins hears
/// why. The launch has the longest time-out of the groups: its waits may be those of any.
class LaunchOfGroups {
 public:
  LaunchOfGroups(const RankPlan& plan, const std::function<void(const targets::RankMemory&)>& launch)
      : plan_(plan), launch_(launch), key_(plan.key), groups_(static_cast<size_t>(num_groups(plan.plan))) {
    views_.resize(groups_.size());
  }

  void run() {
    try {
      find_groups();
      run_from(0);
    } catch (const std::exception& error) {
      for (size_t i = 0; i < order_.size() && !launched_; ++i)
        if (const GroupPtr& group = groups_[static_cast<size_t>(order_[i])]; group && i != refused_)
          group->fail_plan(error.what());
      throw;
    }
  }

 private:
  /// Those behind one that is not there as well: they hear of it.
  void find_groups() {
    std::exception_ptr missing;
    for (size_t g = 0; g < groups_.size(); ++g) {
      try {
        groups_[g] = group_of(plan_, static_cast<int32_t>(g));
        key_ += cat(' ', groups_[g]->number());  // one that has been made anew has launches of its own
      } catch (const DeviceError&) {
        if (!missing) missing = std::current_exception();
      }
    }
    if (missing) std::rethrow_exception(missing);
  }

  void run_from(size_t place) {
    if (place == order_.size()) {
      launched_ = true;
      targets::RankMemory all = views_[0];
      for (const targets::RankMemory& view : views_) all.deadline_ns = std::max(all.deadline_ns, view.deadline_ns);
      all.more_groups.assign(views_.begin() + 1, views_.end());
      return launch_(all);
    }
    const int32_t g = order_[place];
    const RankPlan of_group{plan_.plan, key_, plan_.state_bytes, plan_.device, plan_.stream, g};
    bool met = false;
    try {
      groups_[static_cast<size_t>(g)]->run_plan(of_group, [&](const targets::RankMemory& view) {
        met = true;
        views_[static_cast<size_t>(g)] = view;
        run_from(place + 1);
      });
    } catch (const UserError&) {
      if (!met) refused_ = place;  // as one group alone: all its ranks see that their plans differ
      throw;
    }
  }

  const RankPlan& plan_;
  const std::function<void(const targets::RankMemory&)>& launch_;
  std::string key_;
  std::vector<GroupPtr> groups_;  // of the plan
  const std::vector<int32_t> order_ = plan::groups_by_name(plan_.plan);
  std::vector<targets::RankMemory> views_;    // per group
  size_t refused_ = static_cast<size_t>(-1);  // place in the order
  bool launched_ = false;
};

}  // namespace

void run_with_ranks(const RankPlan& plan, const std::function<void(const targets::RankMemory&)>& launch) {
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

/// What finds the memory of a launch: all that ranks run in it. If sizes are a rank's own, a peer may come with a new
/// plan, or call the collectives, while this rank comes with the same one: then ranks meet first. Splits
/// that are even here may not be so elsewhere, which ranks hear of when they meet for the first launch.
std::string ProcessGroupArk::meet_for(const RankPlan& plan) {
  const bool uneven = plan.plan.splits.find('u') != std::string::npos;
  if (!uneven && (plan.plan.splits.find('e') == std::string::npos || plans_.has(plan.key))) return plan.key;
  const auto turn_of_calls = turn("plan");
  const comm::StepChannel::Scope scope{cat("plan '", plan.plan.name, "' of group ", name_),
                                       comm::Clock::now() + timeout_.load()};
  try {
    const comm::StepChannel::Meeting meeting =
        channel_->meet(plans_.note_of(plan), scope, [this] { return plans_.closing(); });
    if (!meeting.apart.empty()) throw RanksApart(cat(scope.what, ": ", meeting.apart));
    if (!uneven) return plan.key;
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
  const auto use = plans_.use();
  check_open("plan");
  check<UserError>(world_of(plan.plan, plan.group) == getSize(), "plan '", plan.plan.name, "' is of ",
                   world_of(plan.plan, plan.group), " ranks, group ", name_, " has ", getSize());
  channel_->check_failures({cat("plan '", plan.plan.name, "' of group ", name_), {}});
  const std::string key = meet_for(plan);
  const std::shared_ptr<PlanMemory> memory =
      plan_memory({plan.plan, key, plan.state_bytes, plan.device, plan.stream, plan.group});
  check<UserError>(plan.device == memory->device, "plan '", plan.plan.name, "' of group ", name_,
                   ": its memory is on cuda:", memory->device,
                   " (where the first launch was), got a launch on cuda:", plan.device);
  const std::lock_guard turn(memory->turn);
  std::unique_lock<std::mutex> turn_on_gpu;
  if (plan.device >= 0) {
    check<UnsupportedError>(cuda_ != nullptr, "plan '", plan.plan.name, "': group ", name_, " has no CUDA side");
    turn_on_gpu = cuda_->take_turn(plan.device, plan.stream);
  }
  launch(view_of(*memory));
  memory->fresh = false;
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
