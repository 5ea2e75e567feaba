// Which counters are complete before a tile starts, by waits alone: the happens-before of a plan.
#pragma once
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "plan/plan.h"
#include "planner/verify/counter_blocks.h"

namespace ark::planner {

/// Counters in ascending, disjoint intervals that do not touch; a view.
class CounterSet {
 public:
  CounterSet() = default;
  explicit CounterSet(std::span<const CounterRange> ranges) : ranges_(ranges) {}
  bool contains(CounterRange range) const;  // all of it
  bool meets(CounterRange range) const;     // any of it
  std::span<const CounterRange> ranges() const { return ranges_; }
  bool same(const CounterSet& other) const {
    return ranges_.data() == other.ranges_.data() && ranges_.size() == other.ranges_.size();
  }

 private:
  std::span<const CounterRange> ranges_;
};

/// A set in the making.
class CounterUnion {
 public:
  void clear() { ranges_.clear(); }
  void add(std::span<const CounterRange> ranges);
  void keep_common(std::span<const CounterRange> ranges);
  /// A range that begins behind all others do.
  void append(CounterRange range);
  std::span<const CounterRange> ranges() const { return ranges_; }

 private:
  std::vector<CounterRange> ranges_, old_;
};

/// One wait of an op: blocks of tiles that wait for the same counters, and what is complete behind them.
struct WaitOrder {
  bool fresh = false;    // holds back only what is read of appended cache rows, and the end
  bool source = false;   // of a product with own rows: says that what a rank has sent is there, and nothing else
  CounterBlocks blocks;  // of one map
  std::vector<CounterSet> done;  // of `source` none: it is not known whether the rank is this one
};

/// Walks the ops of a plan in order. Waits must be for counters that earlier ops complete (verify_counters).
class CounterOrder {
 public:
  /// `needed_until`: per op, the last op that asks for its counters; sets of later ones leave them out.
  CounterOrder(const plan::Plan& plan, std::vector<int32_t> needed_until);
  /// The waits of op `op`; then its tiles count as run. Call for op 0, 1, 2, ... A tile has behind it what any of its
  /// waits has. The sets last as long as this.
  std::vector<WaitOrder> next();

 private:
  /// The sets of a counter's arrivals: complete when it is, as it is itself.
  struct Before {
    bool any = false;
    CounterSet first;
    std::vector<CounterSet> more;
    void add(const CounterSet& set);
  };
  void find_alive(int32_t op);
  CounterSet complete(CounterRange range);
  CounterSet union_of(CounterRange range);
  CounterSet union_of(std::vector<CounterSet> sets);
  void unite(std::vector<CounterSet>& sets);
  void add_many(const std::vector<CounterSet>& sets);
  CounterSet keep(std::span<const CounterRange> ranges);
  void add_behind(CounterRange range, const CounterSet& set);
  void count_as_run(const abi::OpRecord& record, const std::vector<WaitOrder>& waits);

  const plan::Plan& plan_;
  const std::vector<int32_t> needed_until_;
  size_t op_ = 0;
  std::deque<std::vector<CounterRange>> memory_;          // of the sets
  std::vector<std::pair<CounterRange, int32_t>> groups_;  // of earlier ops that are still needed, and until when
  CounterUnion alive_;                                    // the same counters
  std::vector<Before> before_;                            // per counter
  struct Known {
    bool known = false;
    CounterSet set;
  };
  std::vector<Known> of_counter_;                 // what `complete` has found: for one counter,
  std::unordered_map<uint64_t, Known> of_range_;  // for several
  CounterUnion scratch_;
  std::vector<CounterSet> parts_;
  std::vector<int32_t> depth_;  // add_many: how many sets begin, less those that end, at a counter
};

}  // namespace ark::planner
