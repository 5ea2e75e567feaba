// The other ranks of a launch with exchanges: arrivals on their counters, and the word by which a rank that gives up
// ends the launches of all.
#pragma once
#include <atomic>
#include <string>

#include "device/abi/wait.h"
#include "targets/rank_memory.h"

namespace ark::targets::host {

inline std::atomic_ref<abi::u32> counter_of(abi::RunState* state, abi::u32 index) {
  auto* counters = reinterpret_cast<abi::u32*>(state + 1);
  return std::atomic_ref<abi::u32>(counters[int64_t{index} * abi::kCounterStride]);
}

/// A rank of one of the plan's groups; rank -1: none.
struct GroupRank {
  int32_t group = 0;
  int rank = -1;
};

class Peers {
 public:
  /// Null: there are no others, nothing below does anything.
  Peers(const plan::Plan& plan, const RankMemory* memory) : plan_(plan), memory_(memory) {}
  bool any() const { return memory_ != nullptr; }
  /// The own one.
  int rank(int32_t group = 0) const { return memory_of(*memory_, group).rank; }
  int32_t num_groups() const { return any() ? plan::num_groups(plan_) : 0; }

  /// Adds 1 on every rank of the counter's group, this one among them, to the counter that stands for this rank.
  void arrive(abi::u32 counter, int rank_stride) const {
    const int32_t group = group_of_counter(plan_, counter);
    const RankMemory& memory = memory_of(*memory_, group);
    const abi::u32 own = counter + static_cast<abi::u32>(memory.rank * rank_stride);
    for (std::byte* segment : memory.segments) in(segment, group, own).fetch_add(1, std::memory_order_release);
  }
  /// Of an exchange, as it stands in this rank's memory.
  std::atomic_ref<abi::u32> counter(abi::u32 index) const {
    const int32_t group = group_of_counter(plan_, index);
    const RankMemory& memory = memory_of(*memory_, group);
    return in(memory.segments[static_cast<size_t>(memory.rank)], group, index);
  }

  /// The rank that was the first to give up in one of the groups.
  GroupRank gave_up() const {
    for (int32_t group = 0; group < num_groups(); ++group) {
      const RankMemory& memory = memory_of(*memory_, group);
      abi::RunState* own = state(memory.segments[static_cast<size_t>(memory.rank)], group);
      const int rank = abi::rank_of_abort(std::atomic_ref<abi::u32>(own->abort).load(std::memory_order_acquire));
      if (rank >= 0) return {group, rank};
    }
    return {};
  }
  /// Why nothing more will come from a rank; empty: it may.
  std::string absence(GroupRank of) const {
    const bool known = any() && memory_of(*memory_, of.group).absence;
    return known ? memory_of(*memory_, of.group).absence(of.rank) : std::string();
  }
  /// All groups hear of it: nobody waits for a rank that another group has stopped.
  void give_up(const std::string& why) const {
    for (int32_t group = 0; group < num_groups(); ++group) {
      const RankMemory& memory = memory_of(*memory_, group);
      if (memory.give_up) memory.give_up(why);
      for (std::byte* segment : memory.segments) {
        abi::u32 nobody = 0;
        std::atomic_ref<abi::u32>(state(segment, group)->abort)
            .compare_exchange_strong(nobody, abi::abort_about(memory.rank), std::memory_order_acq_rel);
      }
    }
  }

 private:
  abi::RunState* state(std::byte* segment, int32_t group) const {
    return reinterpret_cast<abi::RunState*>(rank_state(plan_, segment, memory_of(*memory_, group).part_bytes, group));
  }
  std::atomic_ref<abi::u32> in(std::byte* segment, int32_t group, abi::u32 index) const {
    return counter_of(state(segment, group), index - static_cast<abi::u32>(first_counter_of(plan_, group)));
  }

  const plan::Plan& plan_;
  const RankMemory* memory_;
};

}  // namespace ark::targets::host
