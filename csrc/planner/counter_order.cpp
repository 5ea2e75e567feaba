#include "planner/counter_order.h"

#include <map>
#include <set>

#include "planner/regions.h"

namespace ark::planner {

void CounterSet::add(const CounterSet& other) {
  if (other.ranges_.empty()) return;
  if (ranges_.empty()) {
    ranges_ = other.ranges_;
    return;
  }
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

void CounterSet::add(CounterRange range) {
  if (range.empty() || contains(range)) return;
  CounterSet one;
  one.ranges_ = {range};
  add(one);
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

CounterOrder::CounterOrder(const plan::Plan& plan) : plan_(plan), before_(static_cast<size_t>(plan.num_counters)) {
  for (int32_t k = 0; k < plan.num_counters; ++k) before_[static_cast<size_t>(k)].add({k, k});
}

CounterSet CounterOrder::complete(CounterRange range) const {
  CounterSet out;
  for (int32_t k = range.first; k <= range.last; ++k) out.add(before_[static_cast<size_t>(k)]);
  return out;
}

WaitClasses CounterOrder::next() {
  const abi::OpRecord& r = plan_.ops[op_++].record;
  WaitClasses classes;
  int64_t tiles = tiles_of(r);
  std::map<std::vector<int32_t>, int32_t> numbers;  // by the waits' ranges
  std::map<std::pair<int32_t, int32_t>, CounterSet> known;
  for (int64_t t = 0; t < tiles; ++t) {
    std::vector<int32_t> key;
    for (int w = 0; w < r.num_waits; ++w) {
      CounterRange range = counters_of(r.wait[w], r, t);
      key.insert(key.end(), {range.first, range.last});
    }
    auto [found, added] = numbers.try_emplace(key, static_cast<int32_t>(numbers.size()));
    classes.of_tile.push_back(found->second);
    if (!added) continue;
    CounterSet start, fresh;
    for (int w = 0; w < r.num_waits; ++w) {
      size_t at = 2 * static_cast<size_t>(w);
      auto [set, is_new] = known.try_emplace({key[at], key[at + 1]});
      if (is_new) set->second = complete({key[at], key[at + 1]});
      (r.wait[w].role == static_cast<int32_t>(abi::WaitRole::kFresh) ? fresh : start).add(set->second);
    }
    fresh.add(start);
    classes.before_start.push_back(std::move(start));
    classes.before_fresh.push_back(std::move(fresh));
  }
  std::set<std::pair<int32_t, int32_t>> seen;  // counter and class
  for (int64_t t = 0; t < tiles; ++t) {
    int32_t number = classes.of_tile[static_cast<size_t>(t)];
    for (int a = 0; a < r.num_arrivals; ++a) {
      CounterRange range = counters_of(r.arrive[a], r, t);
      for (int32_t k = range.first; k <= range.last; ++k)
        if (seen.emplace(k, number).second)
          before_[static_cast<size_t>(k)].add(classes.before_fresh[static_cast<size_t>(number)]);
    }
  }
  return classes;
}

}  // namespace ark::planner
