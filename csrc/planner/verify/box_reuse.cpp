#include "planner/verify/box_reuse.h"

#include <algorithm>
#include <array>
#include <map>

#include "planner/verify/checks.h"
#include "planner/verify/counter_blocks.h"
#include "planner/verify/regions.h"

namespace ark::planner {
namespace {

using plan::Buffer;
using plan::BufferKind;
using plan::Plan;

struct Exchange {
  int32_t sender = -1, group = 0;
  int64_t begin = 0, end = 0;
  std::vector<int32_t> users;  // ops that touch its boxes
};

std::vector<Exchange> exchanges_of(const Plan& plan) {
  std::map<std::pair<int32_t, int64_t>, Exchange> found;
  auto key = [](const Buffer& b) { return std::pair{b.first_op, box_begin(b)}; };
  for (const Buffer& b : plan.buffers) {
    if (b.kind != BufferKind::kBox) continue;
    Exchange& exchange = found[key(b)];
    exchange.sender = b.first_op, exchange.group = b.group, exchange.begin = box_begin(b);
    exchange.end = exchange.begin + plan::box_stride(b.size_bytes) * world_of(plan, b.group);
  }
  for (size_t op = 0; op < plan.ops.size(); ++op)
    for (const abi::Operand& x : plan.ops[op].operands) {
      if (x.slot == abi::kNoSlot) continue;
      const Buffer& b = plan.buffers[x.slot];
      if (is_any_box(b.kind)) found[key(b)].users.push_back(static_cast<int32_t>(op));
    }
  std::vector<Exchange> exchanges;
  for (auto& [place, exchange] : found) exchanges.push_back(std::move(exchange));
  return exchanges;
}

bool some_share(const std::vector<Exchange>& exchanges) {
  std::vector<std::array<int64_t, 3>> places;
  for (const Exchange& e : exchanges) places.push_back({e.group, e.begin, e.end});
  std::sort(places.begin(), places.end());
  for (size_t i = 1; i < places.size(); ++i)
    if (places[i][0] == places[i - 1][0] && places[i][1] < places[i - 1][2]) return true;
  return false;
}

using Set = std::vector<uint64_t>;  // of ops
bool has(const Set& set, int32_t op) { return set[static_cast<size_t>(op) / 64] >> (op % 64) & 1; }
void add(Set& set, int32_t op) { set[static_cast<size_t>(op) / 64] |= uint64_t{1} << (op % 64); }
void add(Set& set, const Set& more) {
  for (size_t word = 0; word < set.size(); ++word) set[word] |= more[word];
}

/// What lies behind ops as waits say: ops of the own rank that are over, and ops that send of which a tile has come
/// from every rank. Before any tile of an op, and after all of them.
class Order {
 public:
  explicit Order(const Plan& plan) : plan_(plan), arrives_(static_cast<size_t>(plan.num_counters), -1) {
    for (size_t op = 0; op < plan.ops.size(); ++op) {
      follow(static_cast<int32_t>(op));
      note_arrivals(static_cast<int32_t>(op));
    }
  }
  bool over_before(int32_t op, int32_t start) const { return has(over_[static_cast<size_t>(start)].before, op); }
  bool heard_before(int32_t op, int32_t start) const { return has(heard_[static_cast<size_t>(start)].before, op); }

 private:
  struct Sets {
    Set before, after;
  };

  void follow(int32_t op) {
    const Set empty((plan_.ops.size() + 63) / 64, 0);
    Sets over{empty, empty}, heard{empty, empty};
    const abi::OpRecord& r = plan_.ops[static_cast<size_t>(op)].record;
    for (int w = 0; w < r.num_waits; ++w) {
      if (r.wait[w].role != static_cast<int32_t>(abi::WaitRole::kAll)) continue;  // what is done before it is not held
      const RowMap map = row_map(r.wait[w]);
      const std::vector<CounterRange> ranges = counter_blocks(r, {&map, 1}).ranges;
      const int32_t source = source_of(ranges);
      if (source < 0) continue;
      const Sets &its = over_[static_cast<size_t>(source)], &has_heard = heard_[static_cast<size_t>(source)];
      const bool all_ranks = r.wait[w].rank_stride != 0;
      if (std::none_of(ranges.begin(), ranges.end(), [](const CounterRange& range) { return range.empty(); })) {
        add(over.before, its.before), add(heard.before, has_heard.before);
        if (all_ranks) add(heard.before, source);
      }
      if (in_full(source, ranges)) add(over.before, its.after), add(heard.before, has_heard.after);
      if (!together(source, ranges)) continue;
      add(over.after, its.after), add(heard.after, has_heard.after);
      if (all_ranks) add(heard.after, source);
    }
    add(over.after, over.before), add(over.after, op), add(heard.after, heard.before);
    over_.push_back(std::move(over)), heard_.push_back(std::move(heard));
  }

  /// The op that all of these counters are of, or -1.
  int32_t source_of(const std::vector<CounterRange>& ranges) const {
    int32_t source = -1;
    for (const CounterRange& range : ranges)
      for (int32_t k = range.first; k <= range.last; ++k) {
        const int32_t op = arrives_[static_cast<size_t>(k)];
        if (op < 0 || (source >= 0 && op != source)) return -1;
        source = op;
      }
    return source;
  }

  /// On each of the counters of this op's arrivals some tile arrives, and all tiles do on some of them.
  void note_arrivals(int32_t op) {
    std::vector<CounterRange>& all = all_.emplace_back();
    const abi::OpRecord& r = plan_.ops[static_cast<size_t>(op)].record;
    for (int a = 0; a < r.num_arrivals; ++a) {
      const RowMap map = row_map(r.arrive[a]);
      CounterRange range;
      bool left_out = false;
      for (const CounterRange& of_block : counter_blocks(r, {&map, 1}).ranges) {
        left_out |= of_block.empty();
        for (int32_t k = of_block.first; k <= of_block.last; ++k) arrives_[static_cast<size_t>(k)] = op;
        if (!of_block.empty())
          range = range.empty()
                      ? of_block
                      : CounterRange{std::min(range.first, of_block.first), std::max(range.last, of_block.last)};
      }
      if (!left_out && !range.empty()) all.push_back(range);
    }
  }

  bool in_full(int32_t source, const std::vector<CounterRange>& ranges) const {
    const std::vector<CounterRange>& all = all_[static_cast<size_t>(source)];
    return !ranges.empty() && std::any_of(all.begin(), all.end(), [&](const CounterRange& wanted) {
      return std::all_of(ranges.begin(), ranges.end(), [&](const CounterRange& range) {
        return range.first <= wanted.first && wanted.last <= range.last;
      });
    });
  }
  bool together(int32_t source, std::vector<CounterRange> ranges) const {
    std::sort(ranges.begin(), ranges.end());
    const std::vector<CounterRange>& all = all_[static_cast<size_t>(source)];
    return std::any_of(all.begin(), all.end(), [&](const CounterRange& wanted) {
      int32_t next = wanted.first;
      for (const CounterRange& range : ranges)
        if (!range.empty() && range.first <= next) next = std::max(next, range.last + 1);
      return next > wanted.last;
    });
  }

  const Plan& plan_;
  std::vector<int32_t> arrives_;                // per counter: the op so far
  std::vector<std::vector<CounterRange>> all_;  // per op: counters of an arrival of all its tiles
  std::vector<Sets> over_, heard_;              // per op
};

}  // namespace

std::vector<BoxReuse> box_reuses(const Plan& plan) {
  std::vector<BoxReuse> reuses;
  if (plan.world == 1) return reuses;
  const std::vector<Exchange> exchanges = exchanges_of(plan);
  if (!some_share(exchanges)) return reuses;
  const Order order(plan);
  auto is_witness = [&](const Exchange& old, const Exchange& now, int32_t between) {
    return order.heard_before(between, now.sender) &&
           std::all_of(old.users.begin(), old.users.end(), [&](int32_t op) { return order.over_before(op, between); });
  };
  for (size_t later = 0; later < exchanges.size(); ++later)
    for (size_t earlier = 0; earlier < later; ++earlier) {
      const Exchange &old = exchanges[earlier], &now = exchanges[later];
      if (old.group != now.group || old.end <= now.begin || now.end <= old.begin) continue;
      const auto between = std::find_if(exchanges.begin(), exchanges.end(), [&](const Exchange& e) {
        return e.group == now.group && is_witness(old, now, e.sender);
      });
      reuses.push_back({old.sender, now.sender, between == exchanges.end() ? -1 : between->sender});
    }
  return reuses;
}

}  // namespace ark::planner
