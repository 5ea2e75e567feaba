#include "planner/counter_order.h"

#include <algorithm>
#include <numeric>

#include "planner/regions.h"

namespace ark::planner {

bool CounterSet::contains(const CounterSet& other) const {
  auto at = ranges_.begin();
  for (const CounterRange& range : other.ranges_) {
    while (at != ranges_.end() && at->last < range.first) ++at;
    if (at == ranges_.end() || at->first > range.first || at->last < range.last) return false;
  }
  return true;
}

void CounterSet::add(const CounterSet& other) {
  if (ranges_.empty()) {
    ranges_ = other.ranges_;
    return;
  }
  if (contains(other)) return;
  std::vector<CounterRange> out;
  out.reserve(ranges_.size() + other.ranges_.size());
  auto a = ranges_.cbegin(), b = other.ranges_.cbegin();
  while (a != ranges_.cend() || b != other.ranges_.cend()) {
    bool from_a = b == other.ranges_.cend() || (a != ranges_.cend() && a->first <= b->first);
    const CounterRange next = from_a ? *a++ : *b++;
    if (!out.empty() && next.first <= out.back().last + 1) {
      out.back().last = std::max(out.back().last, next.last);
    } else {
      out.push_back(next);
    }
  }
  ranges_ = std::move(out);
}

void CounterSet::append(CounterRange range) {
  if (!ranges_.empty() && range.first <= ranges_.back().last + 1) {
    ranges_.back().last = std::max(ranges_.back().last, range.last);
  } else {
    ranges_.push_back(range);
  }
}

void CounterSet::keep_common(const CounterSet& other) {
  std::vector<CounterRange> out;
  auto a = ranges_.cbegin(), b = other.ranges_.cbegin();
  while (a != ranges_.cend() && b != other.ranges_.cend()) {
    const CounterRange both{std::max(a->first, b->first), std::min(a->last, b->last)};
    if (!both.empty()) out.push_back(both);
    a->last < b->last ? ++a : ++b;
  }
  ranges_ = std::move(out);
}

bool CounterSet::contains(CounterRange range) const {
  if (range.empty()) return true;
  auto after = std::upper_bound(ranges_.begin(), ranges_.end(), range.first,
                                [](int32_t first, const CounterRange& r) { return first < r.first; });
  return after != ranges_.begin() && range.last <= std::prev(after)->last;
}

bool CounterSet::meets(CounterRange range) const {
  if (range.empty()) return false;
  auto after = std::upper_bound(ranges_.begin(), ranges_.end(), range.last,
                                [](int32_t last, const CounterRange& r) { return last < r.first; });
  return after != ranges_.begin() && range.first <= std::prev(after)->last;
}

CounterOrder::CounterOrder(const plan::Plan& plan, std::vector<int32_t> needed_until)
    : plan_(plan),
      needed_until_(std::move(needed_until)),
      before_(static_cast<size_t>(plan.num_counters)),
      of_counter_(static_cast<size_t>(plan.num_counters), nullptr) {}

/// What ops from `op` on may ask for.
void CounterOrder::find_alive(int32_t op) {
  std::erase_if(groups_, [&](const auto& group) { return group.second < op; });
  std::sort(groups_.begin(), groups_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  alive_ = CounterSet{};
  for (const auto& [range, until] : groups_) alive_.append(range);
}

void CounterOrder::Before::add(const CounterSet* set) {
  if (first == nullptr) first = set;
  if (first == set || std::find(more.rbegin(), more.rend(), set) != more.rend()) return;
  more.push_back(set);
}

const CounterSet* CounterOrder::complete(CounterRange range) {
  if (range.empty()) return &nothing_;
  const CounterSet** known = nullptr;
  if (range.first == range.last) {
    known = &of_counter_[static_cast<size_t>(range.first)];
  } else {
    known = &of_range_[static_cast<uint64_t>(range.first) << 32 | static_cast<uint32_t>(range.last)];
  }
  if (*known == nullptr) *known = &sets_.emplace_back(union_of(range));
  return *known;
}

CounterSet CounterOrder::union_of(CounterRange range) const {
  std::vector<const CounterSet*> parts;
  auto need = [&](const CounterSet* set) {
    if (set != nullptr && (parts.empty() || parts.back() != set)) parts.push_back(set);
  };
  for (int32_t k = range.first; k <= range.last; ++k) {
    need(before_[static_cast<size_t>(k)].first);
    for (const CounterSet* set : before_[static_cast<size_t>(k)].more) need(set);
  }
  std::sort(parts.begin(), parts.end());
  parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
  CounterSet out;
  out.append(range);
  for (const CounterSet* part : parts) out.add(*part);
  out.keep_common(alive_);
  return out;
}

/// What the waits of a block (of role kFresh, or of the other) have in common with nobody: their union.
const CounterSet* CounterOrder::complete(const WaitClasses& classes, size_t block, const abi::OpRecord& record,
                                         bool fresh) {
  const CounterSet* one = &nothing_;
  CounterSet* several = nullptr;
  for (int w = 0; w < record.num_waits; ++w) {
    if ((record.wait[w].role == static_cast<int32_t>(abi::WaitRole::kFresh)) != fresh) continue;
    const CounterSet* set = complete(classes.waits.of(block)[static_cast<size_t>(w)]);
    if (one == &nothing_) {
      one = set;
      continue;
    }
    if (several == nullptr) several = &sets_.emplace_back(*one);
    several->add(*set);
  }
  return several != nullptr ? several : one;
}

void CounterOrder::number_classes(WaitClasses& classes, const abi::OpRecord& record) {
  const CounterBlocks& waits = classes.waits;
  std::vector<size_t> order(waits.size());
  std::iota(order.begin(), order.end(), size_t{0});
  auto compare = [&](size_t a, size_t b) {
    return std::lexicographical_compare_three_way(waits.of(a).begin(), waits.of(a).end(), waits.of(b).begin(),
                                                  waits.of(b).end());
  };
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return compare(a, b) < 0; });
  classes.of_block.resize(waits.size());
  bool any_fresh = false;
  for (int w = 0; w < record.num_waits; ++w)
    any_fresh |= record.wait[w].role == static_cast<int32_t>(abi::WaitRole::kFresh);
  for (size_t i = 0; i < order.size(); ++i) {
    if (i == 0 || compare(order[i - 1], order[i]) != 0) {
      classes.before_start.push_back(complete(classes, order[i], record, false));
      classes.before_fresh.push_back(classes.before_start.back());
      if (any_fresh) {
        CounterSet& all = sets_.emplace_back(*complete(classes, order[i], record, true));
        all.add(*classes.before_start.back());
        classes.before_fresh.back() = &all;
      }
    }
    classes.of_block[order[i]] = static_cast<int32_t>(classes.before_start.size()) - 1;
  }
}

WaitClasses CounterOrder::next() {
  const abi::OpRecord& r = plan_.ops[op_].record;
  find_alive(static_cast<int32_t>(op_));
  WaitClasses classes;
  std::vector<RowMap> maps = wait_maps(r);
  const size_t num_waits = maps.size();
  classes.waits = counter_blocks(r, maps);
  number_classes(classes, r);
  const std::vector<RowMap> arrivals = arrive_maps(r);
  maps.insert(maps.end(), arrivals.begin(), arrivals.end());
  const CounterBlocks both = counter_blocks(r, maps);  // in the order of `waits`' blocks, or finer
  for (size_t b = 0; b < both.size(); ++b) {
    const auto ranges = both.of(b);
    size_t same = 0;
    if (classes.waits.size() > 1) same = find_block(classes.waits, both.blocks[b]);
    const CounterSet* set = classes.before_fresh[static_cast<size_t>(classes.of_block[same])];
    for (const CounterRange& range : ranges.subspan(num_waits))
      for (int32_t k = range.first; k <= range.last; ++k)
        before_[static_cast<size_t>(k)].add(set);
  }
  for (const RowMap& map : arrivals)
    if (map.limit > 0 && needed_until_[op_] > static_cast<int32_t>(op_))
      groups_.emplace_back(CounterRange{static_cast<int32_t>(map.counter),
                                        static_cast<int32_t>(map.counter) + (map.limit - 1) / map.div},
                           needed_until_[op_]);
  ++op_;
  return classes;
}

}  // namespace ark::planner
