#include "planner/counter_order.h"

#include <algorithm>

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

/// What is behind a counter is what is behind the tiles that arrive on it.
void CounterOrder::count_as_run(const abi::OpRecord& record, const std::vector<WaitOrder>& waits) {
  const std::vector<RowMap> arrivals = arrive_maps(record);
  for (const RowMap& map : arrivals) {
    if (map.limit == 0) continue;
    if (needed_until_[op_] > static_cast<int32_t>(op_)) {
      const auto first = static_cast<int32_t>(map.counter);
      groups_.emplace_back(CounterRange{first, first + (map.limit - 1) / map.div}, needed_until_[op_]);
    }
    for (size_t w = 0; w < waits.size(); ++w) {
      const RowMap maps[2] = {map, row_map(record.wait[w])};
      const CounterBlocks both = counter_blocks(record, maps);
      for (size_t b = 0; b < both.size(); ++b) {
        const CounterRange range = both.of(b)[0];
        const CounterSet* set = complete(both.of(b)[1]);
        for (int32_t k = range.first; k <= range.last; ++k) before_[static_cast<size_t>(k)].add(set);
      }
    }
  }
}

std::vector<WaitOrder> CounterOrder::next() {
  const abi::OpRecord& r = plan_.ops[op_].record;
  find_alive(static_cast<int32_t>(op_));
  std::vector<WaitOrder> waits(static_cast<size_t>(r.num_waits));
  for (size_t w = 0; w < waits.size(); ++w) {
    const RowMap map = row_map(r.wait[w]);
    waits[w].fresh = r.wait[w].role == static_cast<int32_t>(abi::WaitRole::kFresh);
    waits[w].blocks = counter_blocks(r, {&map, 1});
    for (const CounterRange& range : waits[w].blocks.ranges) waits[w].done.push_back(complete(range));
  }
  count_as_run(r, waits);
  ++op_;
  return waits;
}

}  // namespace ark::planner
