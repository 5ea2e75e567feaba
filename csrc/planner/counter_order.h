// Which counters are complete before a tile starts, by waits alone: the happens-before of a plan.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "planner/plan.h"

namespace ark::planner {

/// Counters [first, last] in ascending, disjoint intervals.
struct CounterRange {
  int32_t first = 0, last = -1;
  bool empty() const { return first > last; }
  friend bool operator==(const CounterRange&, const CounterRange&) = default;
};

class CounterSet {
 public:
  void add(const CounterSet& other);
  void add(CounterRange range);
  bool contains(CounterRange range) const;  // all of it
  bool meets(CounterRange range) const;     // any of it

 private:
  std::vector<CounterRange> ranges_;
};

/// The counters that the rows of a tile fall on, as abi.h defines it for Wait and Arrive.
template <class Map>
CounterRange counters_of(const Map& map, const abi::OpRecord& record, int64_t tile) {
  const int64_t c[3] = {tile / record.grid[2] / record.grid[1], tile / record.grid[2] % record.grid[1],
                        tile % record.grid[2]};
  int64_t row = map.base;
  for (int i = 0; i < 3; ++i) row += c[i] * map.coef[i];
  int64_t begin = std::max<int64_t>(row, 0), end = std::min<int64_t>(row + map.extent, map.limit);
  if (begin >= end) return {};
  return {static_cast<int32_t>(map.counter + begin / map.div), static_cast<int32_t>(map.counter + (end - 1) / map.div)};
}

/// All tiles of the op fall on the same counters.
template <class Map>
bool is_uniform(const Map& map, const abi::OpRecord& record) {
  return (map.coef[0] == 0 || record.grid[0] == 1) && (map.coef[1] == 0 || record.grid[1] == 1) &&
         (map.coef[2] == 0 || record.grid[2] == 1);
}

/// Tiles of an op that wait for the same counters.
struct WaitClasses {
  std::vector<int32_t> of_tile;
  std::vector<CounterSet>
      before_start;  // by waits of every role but kFresh: complete before anything dependent is read
  std::vector<CounterSet>
      before_fresh;  // by all waits: complete before appended cache rows are read, and before the end
};

/// Walks the ops of a plan in order. Waits must be for counters that earlier ops complete.
class CounterOrder {
 public:
  explicit CounterOrder(const plan::Plan& plan);
  /// Classes of op `op`; then its tiles count as run. Call for op 0, 1, 2, ...
  WaitClasses next();

 private:
  CounterSet complete(CounterRange range) const;

  const plan::Plan& plan_;
  size_t op_ = 0;
  std::vector<CounterSet> before_;  // per counter: what is complete when it is, itself included
};

}  // namespace ark::planner
