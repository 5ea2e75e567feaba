#include "planner/verify/counter_order.h"

#include <algorithm>
#include <utility>

#include "planner/verify/regions.h"

namespace ark::planner {

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

namespace {

bool contains_all(std::span<const CounterRange> big, std::span<const CounterRange> small) {
  auto at = big.begin();
  for (const CounterRange& range : small) {
    while (at != big.end() && at->last < range.first) ++at;
    if (at == big.end() || at->first > range.first || at->last < range.last) return false;
  }
  return true;
}

}  // namespace

void CounterUnion::append(CounterRange range) {
  if (!ranges_.empty() && range.first <= ranges_.back().last + 1) {
    ranges_.back().last = std::max(ranges_.back().last, range.last);
  } else {
    ranges_.push_back(range);
  }
}

void CounterUnion::add(std::span<const CounterRange> ranges) {
  if (contains_all(ranges_, ranges)) return;
  if (ranges_.empty()) return ranges_.assign(ranges.begin(), ranges.end());
  ranges_.swap(old_);
  ranges_.resize(old_.size() + ranges.size());
  const CounterRange *a = old_.data(), *a_end = a + old_.size(), *b = ranges.data(), *b_end = b + ranges.size();
  CounterRange* out = ranges_.data();
  CounterRange last = a->first <= b->first ? *a++ : *b++;
  while (a != a_end || b != b_end) {
    const bool from_a = b == b_end || (a != a_end && a->first <= b->first);
    const CounterRange next = from_a ? *a++ : *b++;
    if (next.first <= last.last + 1) {
      last.last = std::max(last.last, next.last);
    } else {
      *out++ = last;
      last = next;
    }
  }
  *out++ = last;
  ranges_.resize(static_cast<size_t>(out - ranges_.data()));
}

void CounterUnion::keep_common(std::span<const CounterRange> ranges) {
  ranges_.swap(old_);
  ranges_.clear();
  auto a = old_.begin();
  auto b = ranges.begin();
  while (a != old_.end() && b != ranges.end()) {
    const CounterRange both{std::max(a->first, b->first), std::min(a->last, b->last)};
    if (!both.empty()) ranges_.push_back(both);
    a->last < b->last ? (void)++a : (void)++b;
  }
}

CounterOrder::CounterOrder(const plan::Plan& plan, std::vector<int32_t> needed_until)
    : plan_(plan),
      needed_until_(std::move(needed_until)),
      before_(static_cast<size_t>(plan.num_counters)),
      of_counter_(static_cast<size_t>(plan.num_counters)),
      depth_(static_cast<size_t>(plan.num_counters) + 1, 0) {}

/// What ops from `op` on may ask for.
void CounterOrder::find_alive(int32_t op) {
  std::erase_if(groups_, [&](const auto& group) { return group.second < op; });
  alive_.clear();
  for (const auto& [range, until] : groups_) alive_.append(range);
}

void CounterOrder::Before::add(const CounterSet& set) {
  if (!any) first = set;
  any = true;
  auto same = [&](const CounterSet& other) { return other.same(set); };
  if (same(first) || std::any_of(more.rbegin(), more.rend(), same)) return;
  more.push_back(set);
}

CounterSet CounterOrder::keep(std::span<const CounterRange> ranges) {
  if (ranges.empty()) return {};
  constexpr size_t kChunk = 1 << 14;
  if (memory_.empty() || memory_.back().size() + ranges.size() > memory_.back().capacity())
    memory_.emplace_back().reserve(std::max(kChunk, ranges.size()));
  std::vector<CounterRange>& chunk = memory_.back();
  chunk.insert(chunk.end(), ranges.begin(), ranges.end());
  return CounterSet({chunk.data() + chunk.size() - ranges.size(), ranges.size()});
}

CounterSet CounterOrder::complete(CounterRange range) {
  if (range.empty() || alive_.ranges().empty()) return {};
  Known& known = range.first == range.last
                     ? of_counter_[static_cast<size_t>(range.first)]
                     : of_range_[static_cast<uint64_t>(range.first) << 32 | static_cast<uint32_t>(range.last)];
  if (!known.known) known = {true, union_of(range)};
  return known.set;
}

CounterSet CounterOrder::union_of(CounterRange range) {
  parts_.clear();
  auto need = [&](const CounterSet& set) {
    if (!set.ranges().empty() && (parts_.empty() || !parts_.back().same(set))) parts_.push_back(set);
  };
  for (int32_t k = range.first; k <= range.last; ++k) {
    if (before_[static_cast<size_t>(k)].any) need(before_[static_cast<size_t>(k)].first);
    for (const CounterSet& set : before_[static_cast<size_t>(k)].more) need(set);
  }
  unite(parts_);
  scratch_.add({&range, 1});
  scratch_.keep_common(alive_.ranges());
  return keep(scratch_.ranges());
}

CounterSet CounterOrder::union_of(std::vector<CounterSet> sets) {
  unite(sets);
  return keep(scratch_.ranges());
}

void CounterOrder::unite(std::vector<CounterSet>& sets) {
  auto by_place = [](const CounterSet& a, const CounterSet& b) { return a.ranges().data() < b.ranges().data(); };
  std::sort(sets.begin(), sets.end(), by_place);
  sets.erase(std::unique(sets.begin(), sets.end(), [](const auto& a, const auto& b) { return a.same(b); }), sets.end());
  std::erase_if(sets, [](const CounterSet& set) { return set.ranges().empty(); });
  scratch_.clear();
  size_t ranges = 0;
  for (const CounterSet& set : sets) ranges += set.ranges().size();
  if (sets.size() * ranges > before_.size()) {  // one after the other would take longer
    add_many(sets);
  } else {
    for (const CounterSet& part : sets) scratch_.add(part.ranges());
  }
}

/// One pass over the counters instead of one per set.
void CounterOrder::add_many(const std::vector<CounterSet>& sets) {
  int32_t low = plan_.num_counters, high = -1;
  for (const CounterSet& set : sets) {
    for (const CounterRange& range : set.ranges())
      ++depth_[static_cast<size_t>(range.first)], --depth_[static_cast<size_t>(range.last) + 1];
    low = std::min(low, set.ranges().front().first);
    high = std::max(high, set.ranges().back().last);
  }
  int32_t depth = 0, begin = -1;
  for (int32_t k = low; k <= high + 1; ++k) {
    const int32_t change = std::exchange(depth_[static_cast<size_t>(k)], 0);
    if (change == 0) continue;
    if (depth == 0) begin = k;
    depth += change;
    if (depth == 0) scratch_.append({begin, k - 1});
  }
}

namespace {

bool depend_on_different(const RowMap& a, const RowMap& b, const abi::OpRecord& record) {
  for (int i = 0; i < 3; ++i)
    if (record.grid[i] > 1 && a.coef[i] != 0 && b.coef[i] != 0) return false;
  return true;
}

}  // namespace

/// What is behind a counter is what is behind the tiles that arrive on it.
void CounterOrder::count_as_run(const abi::OpRecord& record, const std::vector<WaitOrder>& waits) {
  const std::vector<RowMap> arrivals = arrive_maps(record);
  for (const RowMap& map : arrivals) {
    if (map.limit == 0) continue;
    if (needed_until_[op_] > static_cast<int32_t>(op_)) {
      const auto first = static_cast<int32_t>(map.counter);
      const std::pair group(CounterRange{first, first + (map.limit - 1) / map.div}, needed_until_[op_]);
      groups_.insert(std::upper_bound(groups_.begin(), groups_.end(), group,
                                      [](const auto& a, const auto& b) { return a.first < b.first; }),
                     group);
    }
    for (size_t w = 0; w < waits.size(); ++w) {
      if (waits[w].source) continue;
      RowMap maps[2] = {map, row_map(record.wait[w])};
      if (depend_on_different(maps[0], maps[1], record)) {  // every counter has behind it what all the blocks have
        const CounterSet set = waits[w].done.size() == 1 ? waits[w].done[0] : union_of(waits[w].done);
        const CounterBlocks arrive = counter_blocks(record, {maps, 1});
        for (const CounterRange& range : arrive.ranges) add_behind(range, set);
        continue;
      }
      const CounterBlocks both = counter_blocks(record, maps);
      for (size_t b = 0; b < both.size(); ++b) add_behind(both.of(b)[0], complete(both.of(b)[1]));
    }
  }
}

void CounterOrder::add_behind(CounterRange range, const CounterSet& set) {
  for (int32_t k = range.first; k <= range.last; ++k) before_[static_cast<size_t>(k)].add(set);
}

std::vector<WaitOrder> CounterOrder::next() {
  const abi::OpRecord& r = plan_.ops[op_].record;
  find_alive(static_cast<int32_t>(op_));
  std::vector<WaitOrder> waits(static_cast<size_t>(r.num_waits));
  for (size_t w = 0; w < waits.size(); ++w) {
    const RowMap map = row_map(r.wait[w]);
    waits[w].fresh = r.wait[w].role == static_cast<int32_t>(abi::WaitRole::kFresh);
    waits[w].source = r.wait[w].role == static_cast<int32_t>(abi::WaitRole::kSource);
    waits[w].blocks = counter_blocks(r, {&map, 1});
    if (waits[w].source) continue;
    for (const CounterRange& range : waits[w].blocks.ranges) waits[w].done.push_back(complete(range));
  }
  count_as_run(r, waits);
  ++op_;
  return waits;
}

}  // namespace ark::planner
