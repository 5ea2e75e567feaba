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

class Peers {
 public:
  /// Null: there are no others, nothing below does anything.
  Peers(const plan::Plan& plan, const RankMemory* memory) : plan_(plan), memory_(memory) {}
  bool any() const { return memory_ != nullptr; }
  int rank() const { return memory_->rank; }

  /// Adds 1 on every rank, this one among them, to the counter that stands for this rank.
  void arrive(abi::u32 counter, int rank_stride) const {
    const abi::u32 own = counter + static_cast<abi::u32>(memory_->rank * rank_stride);
    for (std::byte* segment : memory_->segments)
      counter_of(state(segment), own).fetch_add(1, std::memory_order_release);
  }

  /// The rank that was the first to give up, or -1.
  int gave_up() const {
    if (!any()) return -1;
    std::byte* own = memory_->segments[static_cast<size_t>(memory_->rank)];
    return abi::rank_of_abort(std::atomic_ref<abi::u32>(state(own)->abort).load(std::memory_order_acquire));
  }
  /// Why nothing more will come from a rank; empty: it may.
  std::string absence(int rank) const { return any() && memory_->absence ? memory_->absence(rank) : std::string(); }
  void give_up(const std::string& why) const {
    if (!any()) return;
    if (memory_->give_up) memory_->give_up(why);
    for (std::byte* segment : memory_->segments) {
      abi::u32 nobody = 0;
      std::atomic_ref<abi::u32>(state(segment)->abort)
          .compare_exchange_strong(nobody, abi::abort_about(memory_->rank), std::memory_order_acq_rel);
    }
  }

 private:
  abi::RunState* state(std::byte* segment) const {
    return reinterpret_cast<abi::RunState*>(rank_state(plan_, segment, memory_->part_bytes));
  }

  const plan::Plan& plan_;
  const RankMemory* memory_;
};

}  // namespace ark::targets::host
