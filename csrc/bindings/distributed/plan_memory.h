// What the ranks of a group share for plans with exchanges: memory of each plan, by its key.
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>

#include "bindings/distributed/rank_plan.h"
#include "comm/host_arena.h"
#include "comm/step_channel.h"
#include "comm/symmetric_memory.h"

namespace ark::bindings {

/// Of one plan. It holds the state of its run, so a plan that is made anew finds the launches counted.
struct PlanMemory {
  std::vector<std::byte*> segments;               // by rank
  std::unique_ptr<comm::HostArena> arena;         // host
  std::unique_ptr<comm::SymmetricMemory> on_gpu;  // cuda
  int64_t part_bytes = 0;                         // of uneven exchanges, as their places are
  std::map<int64_t, targets::PartPlaces> parts;   // by the exchange's number
  int device = -1;                                // as RankPlan's
  cuda::GpuInfo gpu;                              // cuda
  std::vector<cuda::DevicePtr> states;            // cuda: run states, by rank
  bool fresh = true;                              // no launch of this rank has been here
  std::mutex turn;                                // of a launch
};

/// Owned by the group. Thread-safe; memory is made by one thread at a time.
class PlanMemories {
 public:
  /// The memory that the plan's key has; where it has none, collective: ranks compare the interfaces of their plans
  /// first. Keys are each rank's own, what ranks make together they tell by its number. Throws UserError where plans
  /// differ.
  std::shared_ptr<PlanMemory> at(const RankPlan& plan, comm::Store& store, const comm::GroupInfo& group,
                                 comm::Clock::time_point deadline);
  /// What this rank says before launches for which ranks meet.
  comm::LaunchNote note_of(const RankPlan& plan);
  /// Held by who uses the group for a plan: close() waits for it.
  std::shared_lock<std::shared_mutex> use() { return std::shared_lock(uses_); }
  /// True from close() on: who waits gives up.
  bool closing() const { return closing_; }
  /// Waits for calls that are under way; what they have launched on a GPU may still run.
  void close();
  /// Ends the waits of launches on GPUs, of all ranks.
  void abort(int rank);
  /// Gives the memory back; waits for what still runs on its GPUs.
  void clear();

 private:
  std::shared_ptr<PlanMemory> make(const RankPlan& plan, comm::Store& store, const comm::GroupInfo& group,
                                   comm::Clock::time_point deadline);

  std::shared_mutex uses_;
  std::mutex making_;  // held while memory is made
  std::mutex mutex_;   // of what follows
  std::map<std::string, std::shared_ptr<PlanMemory>> of_key_;
  std::map<std::string, comm::LaunchNote> notes_;
  int made_ = 0;
  std::atomic<bool> closing_{false};
};

}  // namespace ark::bindings
