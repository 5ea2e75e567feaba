#include "planner/order/overlap.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <optional>

#include "plan/kinds.h"
#include "planner/cost.h"
#include "planner/order/counters.h"
#include "planner/order/visiting_order.h"

namespace ark::planner {
namespace {

int64_t num_blocks(const RowMap& map) { return map.limit <= 0 ? 0 : (map.limit - 1) / map.div + 1; }

/// Does the first tile wait for the last block? Then no tile starts while that is open, as far as we need to know.
bool awaits_last(const abi::Wait& wait) {
  constexpr int kFirst[3] = {0, 0, 0};
  return blocks_of(row_map(wait), kFirst).end >= num_blocks(row_map(wait));
}

class Sharing {
 public:
  Sharing(const Draft& draft, const Machine& machine)
      : graph_(draft.graph),
        machine_(machine),
        shares_(graph_.ops.size()),
        owner_(static_cast<size_t>(draft.num_counters), -1) {
    for (int i = 0; i < num_ops(); ++i)
      for (int a = 0; a < record(i).num_arrivals; ++a) owner_[record(i).arrive[a].counter] = i;
  }

  std::vector<Share> run() {
    if (graph_.world == 1) return std::move(shares_);
    for (int i = 0; i < num_ops(); ++i) {
      if (!sends_long(i)) continue;
      if (const std::optional<int> product = product_before(i)) share(*product, i);
      if (others_start_beside(i)) shares_[static_cast<size_t>(i)].most = workers_for(i);
    }
    return std::move(shares_);
  }

 private:
  int num_ops() const { return static_cast<int>(graph_.ops.size()); }
  const FusedOp& op(int i) const { return graph_.ops[static_cast<size_t>(i)]; }
  const abi::OpRecord& record(int i) const { return op(i).op.record; }
  int waited_for(const abi::Wait& wait) const { return owner_[wait.counter]; }
  double op_seconds(int i) const {
    return tile_seconds(op(i).op, graph_.programs, machine_) * static_cast<double>(num_tiles(record(i))) /
           machine_.num_workers;
  }

  bool sends_long(int i) const;
  std::optional<int> product_before(int sender) const;
  std::vector<int> order_of_sends(int product, int sender) const;
  int spare_for(int product, int sender) const;
  void share(int product, int sender);
  bool others_start_beside(int sender) const;
  int workers_for(int sender) const;

  const FusedGraph& graph_;
  const Machine& machine_;
  std::vector<Share> shares_;
  std::vector<int> owner_;  // per counter that is the first of a group: the op
};

/// It sends for long and computes little.
bool Sharing::sends_long(int i) const {
  const plan::Kind& kind = plan::kind_of(record(i));
  return num_tiles(record(i)) > 0 && kind.family == plan::Family::kProgram && is_exchange(graph_, op(i)) &&
         link_seconds(graph_, op(i), machine_) > kLongSendSeconds;
}

/// The last op that the sender waits for, if it is a product of several waves and the sender's first tiles wait for
/// parts of it.
std::optional<int> Sharing::product_before(int sender) const {
  const abi::OpRecord& r = record(sender);
  int last = -1;
  for (int w = 0; w < r.num_waits; ++w) last = std::max(last, waited_for(r.wait[w]));
  if (last < 0 || plan::kind_of(record(last)).order != plan::Order::kGroupsOfM) return std::nullopt;
  if (record(last).grid[0] != 1 || num_tiles(record(last)) <= machine_.num_workers) return std::nullopt;
  for (int w = 0; w < r.num_waits; ++w)
    if (waited_for(r.wait[w]) == last && awaits_last(r.wait[w])) return std::nullopt;
  return last;
}

/// The product's m blocks by the first tile of the sender that waits for them.
std::vector<int> Sharing::order_of_sends(int product, int sender) const {
  const abi::OpRecord &p = record(product), &s = record(sender);
  std::vector<int64_t> wanted(static_cast<size_t>(p.grid[1]), INT64_MAX);
  for (int w = 0; w < s.num_waits; ++w) {
    if (waited_for(s.wait[w]) != product) continue;
    std::vector<int64_t> first(static_cast<size_t>(num_blocks(row_map(s.wait[w]))), INT64_MAX);
    const std::vector<Interval> waited = blocks_per_tile(row_map(s.wait[w]), s);
    for (size_t tile = waited.size(); tile-- > 0;)
      for (int64_t b = waited[tile].begin; b < waited[tile].end; ++b)
        first[static_cast<size_t>(b)] = static_cast<int64_t>(tile);
    for (int a = 0; a < p.num_arrivals; ++a) {
      if (p.arrive[a].counter != s.wait[w].counter) continue;
      const std::vector<Interval> arrived = blocks_per_tile(p.arrive[a], p);
      for (size_t tile = 0; tile < arrived.size(); ++tile)
        for (int64_t b = arrived[tile].begin; b < arrived[tile].end; ++b) {
          int64_t& of_block = wanted[tile / static_cast<size_t>(p.grid[2])];
          of_block = std::min(of_block, first[static_cast<size_t>(b)]);
        }
    }
  }
  std::vector<int> order(wanted.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return wanted[static_cast<size_t>(a)] < wanted[static_cast<size_t>(b)]; });
  return order;
}

/// As many workers as let product and sends end first; 0: all of them do both, one after the other.
int Sharing::spare_for(int product, int sender) const {
  constexpr int kLeast = 8;
  const auto tiles = static_cast<double>(num_tiles(record(product)));
  const double seconds = tile_seconds(op(product).op, graph_.programs, machine_) + kItemSeconds;
  const double sent = sent_bytes(graph_, op(sender)), sent_tiles = static_cast<double>(num_tiles(record(sender)));
  const double rate = sent / sent_tiles / (tile_seconds(graph_, op(sender), machine_) + kItemSeconds);  // of a worker
  const std::vector<int> groups = groups_of_m(record(product), true);
  const double blocks = record(product).grid[1];
  const auto end_with = [&](int spare) {
    const double end = std::ceil(tiles / (machine_.num_workers - spare)) * seconds;
    const double begin = end * groups.front() / blocks, ready = sent * (1 - groups.back() / blocks);
    const double carried = (end - begin) * std::min(machine_.link_bytes_per_second, spare * rate);
    return end + (sent - std::min(ready, carried)) / machine_.link_bytes_per_second;
  };
  int best = 0;
  for (int spare = kLeast; spare <= machine_.num_workers / 4; ++spare)
    if (end_with(spare) < end_with(best)) best = spare;
  return best;
}

void Sharing::share(int product, int sender) {
  Share& share = shares_[static_cast<size_t>(product)];
  if (share.until >= 0) return;  // the first one that sends it
  const int spare = spare_for(product, sender);
  if (spare == 0) return;
  share.spare = spare;
  share.until = sender;
  share.m_order = order_of_sends(product, sender);
}

/// A later op that computes much and whose first tiles need not wait for the last ones of the sender.
bool Sharing::others_start_beside(int sender) const {
  std::vector<bool> behind(graph_.ops.size(), false), late = behind;
  behind[static_cast<size_t>(sender)] = true;
  for (int i = sender + 1; i < num_ops(); ++i) {
    const abi::OpRecord& r = record(i);
    const auto at = static_cast<size_t>(i);
    for (int w = 0; w < r.num_waits; ++w) {
      const auto before = static_cast<size_t>(waited_for(r.wait[w]));
      behind[at] = behind[at] || behind[before];
      late[at] = late[at] || late[before] || (behind[before] && awaits_last(r.wait[w]));
    }
    const bool heavy = plan::kind_of(r).items == plan::Items::kOne && op_seconds(i) > kLongSendSeconds;
    if (heavy && !late[at]) return true;
  }
  return false;
}

/// They fill the link, and compute meanwhile what is sent.
int Sharing::workers_for(int sender) const {
  const double computing = op_seconds(sender) * machine_.num_workers / link_seconds(graph_, op(sender), machine_);
  return std::max(link_workers(machine_), static_cast<int>(std::ceil(computing)));
}

}  // namespace

std::vector<Share> share_workers(const Draft& draft, const Machine& machine) { return Sharing(draft, machine).run(); }

}  // namespace ark::planner
