#include "planner/order/overlap.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <optional>

#include "plan/kinds.h"
#include "planner/background.h"
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
  Sharing(const Draft& draft, const Options& options)
      : graph_(draft.graph),
        machine_(options.machine),
        background_(options.background),
        shares_(graph_.ops.size()),
        owner_(static_cast<size_t>(draft.num_counters), -1) {
    for (int i = 0; i < num_ops(); ++i)
      for (int a = 0; a < record(i).num_arrivals; ++a) owner_[record(i).arrive[a].counter] = i;
  }

  std::vector<Share> run() {
    if (graph_.world == 1 || has_several_groups(graph_)) return std::move(shares_);
    for (int i = 0; i < num_ops(); ++i) {
      if (num_tiles(record(i)) == 0 || !is_exchange(graph_, op(i))) continue;
      const bool copies = background_ && may_send_in_background(graph_, op(i));
      const double link = link_seconds(graph_, op(i), machine_);
      const double least = copies ? machine_.background_send_seconds : machine_.long_send_seconds;
      if (link <= least || plan::kind_of(record(i)).family != plan::Family::kProgram) continue;
      const double beside = seconds_beside(i);
      const std::optional<int> product = beside <= link ? product_before(i) : std::nullopt;
      if (!product && beside <= least) continue;
      Share& own = shares_[static_cast<size_t>(i)];
      own.background = copies;
      if (!copies && beside > least) own.most = workers_for(i, beside);
      if (product) share(*product, i);
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

  std::optional<int> product_before(int sender) const;
  std::vector<int> order_of_sends(int product, int sender) const;
  double end_with(int spare, int product, int sender) const;
  int spare_for(int product, int sender) const;
  void share(int product, int sender);
  double seconds_beside(int sender) const;
  int workers_for(int sender, double beside) const;

  const FusedGraph& graph_;
  const Machine& machine_;
  const bool background_;
  std::vector<Share> shares_;
  std::vector<int> owner_;  // per counter that is the first of a group: the op
};

/// The last op that the sender waits for, if it is a product of several waves and the sender's first tiles wait for
/// parts of it.
std::optional<int> Sharing::product_before(int sender) const {
  const abi::OpRecord& r = record(sender);
  int last = -1;
  for (int w = 0; w < r.num_waits; ++w) last = std::max(last, waited_for(r.wait[w]));
  if (last < 0 || plan::kind_of(record(last)).order != plan::Order::kGroupsOfM) return std::nullopt;
  if (record(last).grid[abi::GridAxis::kBatch] != 1 || num_tiles(record(last)) <= machine_.num_workers)
    return std::nullopt;
  for (int w = 0; w < r.num_waits; ++w)
    if (waited_for(r.wait[w]) == last && awaits_last(r.wait[w])) return std::nullopt;
  return last;
}

/// The product's m blocks by the first tile of the sender that waits for them.
std::vector<int> Sharing::order_of_sends(int product, int sender) const {
  const abi::OpRecord &p = record(product), &s = record(sender);
  std::vector<int64_t> wanted(static_cast<size_t>(p.grid[abi::GridAxis::kRowBlock]), INT64_MAX);
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
          int64_t& of_block = wanted[tile / static_cast<size_t>(p.grid[abi::GridAxis::kColumnBlock])];
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

/// When all is sent, if the product leaves `spare` workers to the sends: each group is sent after it is done, by these
/// workers until the product ends, then by all.
double Sharing::end_with(int spare, int product, int sender) const {
  const abi::OpRecord& p = record(product);
  const double seconds = tile_seconds(op(product).op, graph_.programs, machine_) + machine_.costs.item;
  const auto end_of = [&](int64_t tiles) {
    return seconds * std::ceil(static_cast<double>(tiles) / (machine_.num_workers - spare));
  };
  const double bytes = sent_bytes(graph_, op(sender)), link = machine_.link_bytes_per_second;
  const double of_tile = bytes / static_cast<double>(num_tiles(record(sender)));
  const double of_worker = of_tile / (tile_seconds(graph_, op(sender), machine_) + machine_.costs.item);
  const double rate = std::min(link, spare * of_worker), end = end_of(num_tiles(p));
  double at = 0;
  int blocks = 0;
  for (const int group : groups_of_m(p, true)) {
    blocks += group;
    at = std::max(at, end_of(int64_t{blocks} * p.grid[abi::GridAxis::kColumnBlock]));
    const double of_group = bytes * group / p.grid[abi::GridAxis::kRowBlock];
    const double carried = std::min(of_group, rate * std::max(0.0, end - at));
    if (carried > 0) at += carried / rate;
    if (carried < of_group) at = std::max(at, end) + (of_group - carried) / link;
  }
  return at;
}

/// As many workers as let product and sends end first; 0: all of them do both, one after the other.
int Sharing::spare_for(int product, int sender) const {
  constexpr int kLeast = 8;
  int best = 0;
  double best_end = end_with(0, product, sender);
  for (int spare = kLeast; spare <= machine_.num_workers / 4; ++spare)
    if (const double end = end_with(spare, product, sender); end < best_end) best = spare, best_end = end;
  return best;
}

void Sharing::share(int product, int sender) {
  Share& share = shares_[static_cast<size_t>(product)];
  if (share.until >= 0) return;  // the first one that sends it
  const bool background = shares_[static_cast<size_t>(sender)].background;
  const int spare = background ? 0 : spare_for(product, sender);
  if (spare == 0 && !background) return;
  share.spare = spare;
  share.until = sender;
  share.m_order = order_of_sends(product, sender);
}

/// What later ops compute that can start while the sender runs: those that do not wait for it, and those whose first
/// tiles wait for its first ones. (An op in between, were it never so early, has a tile on every worker that waits for
/// the last ones.)
double Sharing::seconds_beside(int sender) const {
  double seconds = 0;
  std::vector<bool> behind(graph_.ops.size(), false);
  behind[static_cast<size_t>(sender)] = true;
  for (int i = sender + 1; i < num_ops(); ++i) {
    const abi::OpRecord& r = record(i);
    bool late = false;
    for (int w = 0; w < r.num_waits; ++w) {
      const int before = waited_for(r.wait[w]);
      if (!behind[static_cast<size_t>(before)]) continue;
      behind[static_cast<size_t>(i)] = true;
      late = late || before != sender || awaits_last(r.wait[w]);
    }
    if (!late && plan::kind_of(r).items == plan::Items::kOne) seconds += op_seconds(i);
  }
  return seconds;
}

/// They fill the link, or take as long as what runs beside them.
int Sharing::workers_for(int sender, double beside) const {
  const double all = tile_seconds(graph_, op(sender), machine_) * static_cast<double>(num_tiles(record(sender)));
  const double wanted = std::ceil(all / std::max(link_seconds(graph_, op(sender), machine_), beside));
  return static_cast<int>(std::min<double>(machine_.num_workers, wanted));
}

}  // namespace

std::vector<Share> share_workers(const Draft& draft, const Options& options) { return Sharing(draft, options).run(); }

}  // namespace ark::planner
