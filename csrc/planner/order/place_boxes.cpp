#include "planner/order/place_boxes.h"

#include <algorithm>
#include <map>

#include "base/check.h"
#include "planner/order/storage_uses.h"

namespace ark::planner {
namespace {

struct Exchange {
  int sender = -1;
  int32_t group = 0;
  int64_t bytes = 0;       // of its boxes, from all ranks
  std::vector<int> users;  // ops that touch them, the sender among them
  std::vector<StorageId> storages;
};

/// From one box of the storage's exchange to the next.
int64_t box_bytes(const FusedGraph& graph, const Storage& storage) {
  const int64_t bytes = storage.num_elements * size_bytes(storage.dtype);
  return storage.joined_boxes() ? bytes / world_of(graph, storage.group) : plan::box_stride(bytes);
}

/// In the order in which they are sent.
std::vector<Exchange> exchanges_of(const FusedGraph& graph) {
  const std::vector<StorageUse> uses = uses_of(graph);
  std::map<std::pair<int, int32_t>, Exchange> found;  // by sender and number
  for (StorageId s = 0; s < static_cast<StorageId>(graph.storages.size()); ++s) {
    const Storage& storage = graph.storages[s];
    if (storage.exchange < 0 || uses[s].ops.empty()) continue;
    check(!uses[s].writers.empty(), "box '", storage.name, "' is read but never written");
    Exchange& exchange = found[{uses[s].writers.front(), storage.exchange}];
    exchange.sender = uses[s].writers.front();
    exchange.group = storage.group;
    exchange.bytes = box_bytes(graph, storage) * world_of(graph, storage.group);
    exchange.users.insert(exchange.users.end(), uses[s].ops.begin(), uses[s].ops.end());
    exchange.storages.push_back(s);
  }
  std::vector<Exchange> exchanges;
  for (auto& [key, exchange] : found) {
    std::sort(exchange.users.begin(), exchange.users.end());
    exchange.users.erase(std::unique(exchange.users.begin(), exchange.users.end()), exchange.users.end());
    exchanges.push_back(std::move(exchange));
  }
  return exchanges;
}

/// What an op has heard of other ranks before it starts.
struct Heard {
  std::vector<OpSet> before;  // per op: exchanges' senders of which it has seen a tile of every rank
  std::vector<OpSet> after;   // the same of all its tiles together

  explicit Heard(int num_ops) : before(num_ops, OpSet(num_ops)), after(num_ops, OpSet(num_ops)) {}
  void derive(int op, const std::vector<WaitSource>& sources, const std::vector<bool>& sends) {
    before[op].clear();
    for (const WaitSource& source : sources) {
      if (source.full) before[op].add(after[source.before]);
      if (source.some) before[op].add(before[source.before]);
      if (source.some && sends[source.before]) before[op].add(source.before);
    }
    after[op] = before[op];
    for (const WaitSource& source : sources) {
      if (!source.together) continue;
      after[op].add(after[source.before]);
      if (sends[source.before]) after[op].add(source.before);
    }
  }
};

class BoxPlacer {
 public:
  BoxPlacer(Draft& draft, const Options& options, Sync& sync)
      : draft_(draft),
        options_(options),
        sync_(sync),
        exchanges_(exchanges_of(draft.graph)),
        finished_(num_ops()),
        heard_(num_ops()),
        size_(static_cast<size_t>(num_groups(draft.graph)), 0) {
    for (const FusedOp& op : draft.graph.ops) sends_.push_back(is_exchange(draft.graph, op));
    derive_from(0);
  }

  BoxPlaces run() {
    BoxPlaces places;
    places.begin.assign(draft_.graph.storages.size(), -1);
    for (size_t e = 0; e < exchanges_.size(); ++e) {
      Region& region = region_for(exchanges_[e]);
      region.tenants.push_back(e);
      for (StorageId s : exchanges_[e].storages) places.begin[s] = region.begin;
    }
    places.size = std::move(size_);
    return places;
  }

 private:
  /// Boxes of one exchange after the other.
  struct Region {
    int32_t group = 0;
    int64_t begin = 0, bytes = 0;
    std::vector<size_t> tenants;
  };

  int num_ops() const { return static_cast<int>(draft_.graph.ops.size()); }
  void derive_from(int op) {
    for (; op < num_ops(); ++op) {
      finished_.derive(op, sync_.sources[op]);
      heard_.derive(op, sync_.sources[op], sends_);
    }
  }

  /// The smallest one that is free; else one that waits set free; else a new one.
  Region& region_for(const Exchange& now) {
    std::vector<Region*> large;
    const bool reuse = options_.reuse_memory && !has_uneven(draft_.graph);
    for (Region& region : regions_)
      if (region.group == now.group && region.bytes >= now.bytes && reuse) large.push_back(&region);
    std::stable_sort(large.begin(), large.end(), [](Region* a, Region* b) { return a->bytes < b->bytes; });
    for (Region* region : large)
      if (all_free(*region, now)) return *region;
    constexpr int64_t kWorthWaiting = 64 * 1024;
    if (now.bytes >= kWorthWaiting)
      for (Region* region : large)
        if (set_free(*region, now)) return *region;
    int64_t& size = size_[static_cast<size_t>(now.group)];
    regions_.push_back({now.group, size, now.bytes, {}});
    size += now.bytes;
    return regions_.back();
  }

  bool all_free(const Region& region, const Exchange& now) const {
    return std::all_of(region.tenants.rbegin(), region.tenants.rend(),
                       [&](size_t old) { return free_for(exchanges_[old], now); });
  }
  /// Every rank of the group sends some exchange in it after it is done with `old`, and `now` is sent after that has
  /// come from all.
  bool free_for(const Exchange& old, const Exchange& now) const {
    return std::any_of(exchanges_.begin(), exchanges_.end(), [&](const Exchange& between) {
      return between.group == now.group && between.sender > old.sender && between.sender < now.sender &&
             heard_.before[now.sender].has(between.sender) && open_users(old, between).empty();
    });
  }
  std::vector<int> open_users(const Exchange& old, const Exchange& between) const {
    std::vector<int> open;
    for (int op : old.users)
      if (op >= between.sender || !finished_.before[between.sender].has(op)) open.push_back(op);
    return open;
  }

  /// Adds waits for the last tenant's ops to the sender of an exchange in between.
  bool set_free(const Region& region, const Exchange& now) {
    const Exchange& old = exchanges_[region.tenants.back()];
    for (auto between = exchanges_.rbegin(); between != exchanges_.rend(); ++between) {
      if (between->group != now.group) continue;
      if (between->sender >= now.sender || !heard_.before[now.sender].has(between->sender)) continue;
      if (between->sender <= old.sender) break;
      const std::vector<int> open = last_of(open_users(old, *between));
      if (!cheap(open, between->sender, now.group)) continue;
      for (int op : open) check(add_full_wait(draft_, sync_, between->sender, op), "no room for a wait on op ", op);
      derive_from(between->sender);
      return all_free(region, now);
    }
    return false;
  }
  /// Without those that are over when a later one is: a reader waits for who sends.
  std::vector<int> last_of(const std::vector<int>& ops) const {
    std::vector<int> last;
    for (auto op = ops.rbegin(); op != ops.rend(); ++op)
      if (std::none_of(last.begin(), last.end(), [&](int later) { return finished_.after[later].has(*op); }))
        last.push_back(*op);
    return last;
  }
  bool cheap(const std::vector<int>& waits, int op, int32_t group) const {
    const auto record = [&](int i) -> const abi::OpRecord& { return draft_.graph.ops[i].op.record; };
    if (record(op).num_waits + static_cast<int>(waits.size()) > abi::kMaxWaits) return false;
    return std::all_of(waits.begin(), waits.end(), [&](int i) {
      if (num_tiles(record(i)) == 0 || !over_long_before(i, op, group)) return false;
      // Counters of exchanges have their numbers already, the same on all ranks.
      return sync_.whole_counter[i] >= 0 || (!sends_[i] && record(i).num_arrivals < abi::kMaxArrivals);
    });
  }

  /// Another exchange of the group lies in between. The schedule's clock is not asked: it may differ over ranks, places
  /// may not.
  bool over_long_before(int user, int op, int32_t group) const {
    return std::any_of(exchanges_.begin(), exchanges_.end(), [&](const Exchange& e) {
      return e.group == group && e.sender > user && e.sender < op && heard_.before[op].has(e.sender);
    });
  }

  Draft& draft_;
  const Options& options_;
  Sync& sync_;
  const std::vector<Exchange> exchanges_;
  std::vector<bool> sends_;  // per op
  Finished finished_;
  Heard heard_;
  std::vector<Region> regions_;
  std::vector<int64_t> size_;  // per group
};

}  // namespace

BoxPlaces place_boxes(Draft& draft, const Options& options, Sync& sync) {
  if (draft.graph.world == 1) return {std::vector<int64_t>(draft.graph.storages.size(), -1)};
  return BoxPlacer(draft, options, sync).run();
}

}  // namespace ark::planner
