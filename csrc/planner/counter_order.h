// Which counters are complete before a tile starts, by waits alone: the happens-before of a plan.
#pragma once
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "planner/counter_blocks.h"
#include "planner/plan.h"

namespace ark::planner {

/// Counters in ascending, disjoint intervals.
class CounterSet {
 public:
  void add(const CounterSet& other);
  /// A range that begins behind all others do.
  void append(CounterRange range);
  bool contains(CounterRange range) const;    // all of it
  bool meets(CounterRange range) const;       // any of it
  void keep_common(const CounterSet& other);  // intersection

 private:
  bool contains(const CounterSet& other) const;
  std::vector<CounterRange> ranges_;
};

/// One wait of an op: blocks of tiles that wait for the same counters, and what is complete behind them.
struct WaitOrder {
  bool fresh = false;    // holds back only what is read of appended cache rows, and the end
  CounterBlocks blocks;  // of one map
  std::vector<const CounterSet*> done;
};

/// Walks the ops of a plan in order. Waits must be for counters that earlier ops complete (verify_counters).
class CounterOrder {
 public:
  /// `needed_until`: per op, the last op that asks for its counters; sets of later ones leave them out.
  CounterOrder(const plan::Plan& plan, std::vector<int32_t> needed_until);
  /// The waits of op `op`; then its tiles count as run. Call for op 0, 1, 2, ... The sets stay where they are. A tile
  /// has behind it what any of its waits has.
  std::vector<WaitOrder> next();

 private:
  /// The sets of a counter's arrivals: complete when it is, as it is itself.
  struct Before {
    const CounterSet* first = nullptr;
    std::vector<const CounterSet*> more;
    void add(const CounterSet* set);
  };
  void find_alive(int32_t op);
  const CounterSet* complete(CounterRange range);
  CounterSet union_of(CounterRange range) const;
  void count_as_run(const abi::OpRecord& record, const std::vector<WaitOrder>& waits);

  const plan::Plan& plan_;
  const std::vector<int32_t> needed_until_;
  size_t op_ = 0;
  std::deque<CounterSet> sets_;
  std::vector<std::pair<CounterRange, int32_t>> groups_;      // of earlier ops that are still needed, and until when
  CounterSet alive_;                                          // the same counters
  std::vector<Before> before_;                                // per counter
  std::vector<const CounterSet*> of_counter_;                 // what `complete` has found: for one counter,
  std::unordered_map<uint64_t, const CounterSet*> of_range_;  // for several
  const CounterSet nothing_;
};

}  // namespace ark::planner
