#include <algorithm>
#include <vector>

#include "planner/verify/checks.h"
#include "planner/verify/counter_blocks.h"
#include "planner/verify/regions.h"

namespace ark::planner {
namespace {

using plan::Plan;

/// Per counter: arrivals of a launch, and the last op that arrives.
struct Arrivals {
  uint32_t count = 0;
  int32_t last_op = -1;
};

std::vector<Arrivals> arrivals_of(const Plan& plan) {
  std::vector<Arrivals> arrivals(static_cast<size_t>(plan.num_counters));
  for (size_t op = 0; op < plan.ops.size(); ++op) {
    const abi::OpRecord& r = plan.ops[op].record;
    for (const RowMap& map : arrive_maps(r)) {
      const CounterBlocks blocks = counter_blocks(r, {&map, 1});
      for (size_t b = 0; b < blocks.size(); ++b) {
        const TileBlock& block = blocks.blocks[b];
        const auto tiles = static_cast<uint32_t>(block.count[0] * block.count[1] * block.count[2]);
        for (int32_t k = blocks.ranges[b].first; k <= blocks.ranges[b].last; ++k)
          arrivals[static_cast<size_t>(k)] = {arrivals[static_cast<size_t>(k)].count + tiles, static_cast<int32_t>(op)};
      }
    }
  }
  return arrivals;
}

uint32_t target_of(const abi::Wait& wait, int32_t counter) {
  bool last = counter == static_cast<int32_t>(wait.counter) + (wait.limit - 1) / wait.div;
  return last ? wait.last_target : wait.target;
}

/// A wait that expects fewer arrivals than come would be met early, and never again as it should in later launches; one
/// that expects more would never be met.
void check_targets(const Plan& plan, const std::vector<Arrivals>& arrivals) {
  for (size_t op = 0; op < plan.ops.size(); ++op) {
    const abi::OpRecord& r = plan.ops[op].record;
    for (int w = 0; w < r.num_waits; ++w) {
      const RowMap map = row_map(r.wait[w]);
      const CounterBlocks blocks = counter_blocks(r, {&map, 1});
      CounterRange checked{};  // the last range and what it grew from: neighbours overlap
      for (const CounterRange& range : blocks.ranges) {
        if (range.empty() || (!checked.empty() && checked.first <= range.first && range.last <= checked.last)) continue;
        const bool goes_on = !checked.empty() && checked.first <= range.first && range.first <= checked.last + 1;
        const int32_t from = goes_on ? checked.last + 1 : range.first;
        checked = goes_on ? CounterRange{checked.first, range.last} : range;
        for (int32_t k = from; k <= range.last; ++k) {
          const Arrivals& a = arrivals[static_cast<size_t>(k)];
          uint32_t target = target_of(r.wait[w], k);
          require(plan, a.count == target, describe(plan, static_cast<int64_t>(op)), ", wait ", w, ": expects ", target,
                  " arrivals on counter ", k, ", which gets ", a.count);
          require(plan, a.last_op < static_cast<int32_t>(op), describe(plan, static_cast<int64_t>(op)), ", wait ", w,
                  ": counter ", k, " gets arrivals from op ", a.last_op);
        }
      }
    }
  }
}

/// Every list goes through the ops in their order. Then nobody is stuck: what waits for earlier ops only
/// (check_targets) can run once they have, and the earliest op with tiles left has no unfinished one before it.
bool lists_follow_ops(const Plan& plan) {
  return std::all_of(plan.lists.begin(), plan.lists.end(), [](const std::vector<abi::WorkItem>& list) {
    return std::is_sorted(list.begin(), list.end(),
                          [](const abi::WorkItem& a, const abi::WorkItem& b) { return a.op < b.op; });
  });
}

/// All tiles of the op fall on the same counters.
template <class Map>
bool is_uniform(const Map& map, const abi::OpRecord& record) {
  for (int i = 0; i < 3; ++i)
    if (map.coef[i] != 0 && record.grid[i] != 1) return false;
  return true;
}

/// Walks the lists as the workers do, item by item: a task may wait for all tiles of its item before the first and
/// arrive after the last; one that is more eager gets through as well. Any order of steps reaches the same end, since
/// counters only grow.
class Walk {
 public:
  explicit Walk(const Plan& plan)
      : plan_(plan), counters_(static_cast<size_t>(plan.num_counters), 0), workers_(plan.lists.size()) {}

  void run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t w = 0; w < workers_.size(); ++w) moved |= advance(w);
    }
    for (size_t w = 0; w < workers_.size(); ++w) {
      const Worker& worker = workers_[w];
      if (worker.item == plan_.lists[w].size()) continue;
      const abi::WorkItem& item = plan_.lists[w][worker.item];
      throw InternalError(cat("plan ", plan_.name, ": deadlock: worker ", w, " never runs tiles ", item.first, " + ",
                              item.count, " of ", describe(plan_, item.op), ": counter ", worker.counter, " stays at ",
                              counters_[static_cast<size_t>(worker.counter)], ", expected ", worker.expected));
    }
  }

 private:
  struct Worker {
    size_t item = 0;
    int32_t tiles_ready = 0;  // of the item
    int32_t counter = -1;     // what it waits for
    uint32_t expected = 0;
  };

  /// `first`: of its item; later tiles need not look at what is the same for all.
  bool ready(Worker& worker, const abi::OpRecord& r, int64_t tile, bool first) {
    for (int w = 0; w < r.num_waits; ++w) {
      if (!first && is_uniform(r.wait[w], r)) continue;
      CounterRange range = counters_of(r.wait[w], r, tile);
      for (int32_t k = range.first; k <= range.last; ++k) {
        worker.expected = target_of(r.wait[w], k);
        worker.counter = k;
        if (counters_[static_cast<size_t>(k)] < worker.expected) return false;
      }
    }
    worker.counter = -1;
    return true;
  }

  void arrive(const abi::OpRecord& r, const abi::WorkItem& item) {
    for (int a = 0; a < r.num_arrivals; ++a) {
      const bool uniform = is_uniform(r.arrive[a], r);
      for (int32_t t = 0; t < (uniform ? 1 : item.count); ++t) {
        CounterRange range = counters_of(r.arrive[a], r, item.first + t);
        for (int32_t k = range.first; k <= range.last; ++k)
          counters_[static_cast<size_t>(k)] += static_cast<uint32_t>(uniform ? item.count : 1);
      }
    }
  }
  static bool all_uniform(const abi::OpRecord& r) {
    return std::all_of(r.wait, r.wait + r.num_waits, [&](const abi::Wait& wait) { return is_uniform(wait, r); });
  }

  bool advance(size_t index) {
    Worker& worker = workers_[index];
    const auto& list = plan_.lists[index];
    bool moved = false;
    for (; worker.item < list.size(); ++worker.item, worker.tiles_ready = 0, moved = true) {
      const abi::WorkItem& item = list[worker.item];
      const abi::OpRecord& r = plan_.ops[static_cast<size_t>(item.op)].record;
      if (worker.counter >= 0 && counters_[static_cast<size_t>(worker.counter)] < worker.expected) return moved;
      const int32_t to_ask = all_uniform(r) ? 1 : item.count;
      for (; worker.tiles_ready < to_ask; ++worker.tiles_ready)
        if (!ready(worker, r, item.first + worker.tiles_ready, worker.tiles_ready == 0)) return moved;
      arrive(r, item);
    }
    return moved;
  }

  const Plan& plan_;
  std::vector<uint32_t> counters_;
  std::vector<Worker> workers_;
};

}  // namespace

void verify_counters(const Plan& plan) {
  check_targets(plan, arrivals_of(plan));
  if (!lists_follow_ops(plan)) Walk(plan).run();
}

}  // namespace ark::planner
