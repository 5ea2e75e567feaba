// Which counters an op waits for: the cheapest group that serves each need, without what other waits imply.
#include <algorithm>

#include "base/check.h"
#include "planner/order/synchronizer.h"

namespace ark::planner {
namespace {

using abi::WaitRole;

/// Extends a by b if that leaves one interval; else keeps the longer.
void join(Interval& a, const Interval& b) {
  if (b.empty()) return;
  if (a.empty()) {
    a = b;
  } else if (b.begin <= a.end && a.begin <= b.end) {
    a = {std::min(a.begin, b.begin), std::max(a.end, b.end)};
  } else if (b.end - b.begin > a.end - a.begin) {
    a = b;
  }
}

}  // namespace

Candidate Synchronizer::full_candidate(int op, int before) {
  Candidate c{.before = before, .full = true, .some = true, .together = true};
  Groups& groups = groups_[before];
  // A few fine counters are as cheap to poll as one, and spare the arrivals of a whole group.
  constexpr int kFewBlocks = 8;
  if (groups.fine && groups.fine->num_blocks <= kFewBlocks && !groups.whole) {
    c.fine = true;
    c.wait = wait_for_all(*groups.fine);
    if (small(op)) c.blocks = memo_.blocks(c.wait, record(op));
    return c;
  }
  if (!groups.whole) groups.whole = whole_group(record(before));
  c.wait = wait_for_all(*groups.whole);
  return c;
}

/// A tile of the own rank's batch waits for nothing, others for one rank alone: so none of them has behind it what the
/// op on this rank has, and its waits prove nothing to others.
Candidate Synchronizer::source_candidate(int op, const Need& need) {
  Candidate c = candidate_of_all(op, need);
  check(c.wait.coef[0] == 0, "rows of a box differ over ranks");
  c.wait.role = static_cast<int>(WaitRole::kSource);
  c.full = c.some = c.together = false;
  return c;
}

Candidate Synchronizer::candidate(int op, const Need& need) {
  return need.role == WaitRole::kSource ? source_candidate(op, need) : candidate_of_all(op, need);
}

Candidate Synchronizer::candidate_of_all(int op, const Need& need) {
  const int before = need.dep.before;
  const std::optional<CounterGroup>& fine = groups_[before].fine;
  if (!fine || need.anywhere || !small(op) || need.reads_most()) return full_candidate(op, before);
  const std::optional<Scale> scale = memo_.scale(*fine, record(before), need.own);
  const std::optional<abi::Wait> wait = scale ? make_wait(*fine, *scale, need.reads, record(op)) : std::nullopt;
  if (!wait) return full_candidate(op, before);
  Candidate c{.before = before, .fine = true, .wait = *wait};
  c.wait.role = static_cast<int>(need.role);
  c.blocks = memo_.blocks(*wait, record(op));
  Interval all;
  bool full = true;
  c.some = true;
  for (const Interval& blocks : *c.blocks) {
    join(all, blocks);
    c.some = c.some && !blocks.empty();
    full = full && blocks.begin == 0 && blocks.end == fine->num_blocks;
  }
  if (full) return full_candidate(op, before);
  c.together = all.begin == 0 && all.end == fine->num_blocks;
  // Who reads no fresh rows may skip a kFresh wait, so it proves nothing to others.
  if (need.role == WaitRole::kFresh) c.some = c.together = false;
  return c;
}

/// Merges waits on the same counters: equal maps, and maps of which one covers the other.
void Synchronizer::add_candidate(std::vector<Candidate>& candidates, Candidate added) const {
  auto covered = [](const Candidate& small, const Candidate& big) {
    if (small.before != big.before) return false;
    if (small.wait.role == 0 && big.wait.role != 0) return false;  // kFresh does not hold everyone back
    if (big.full || (!small.fine && !big.fine && small.wait.role == big.wait.role)) return true;
    if (small.full || !small.fine || !big.fine) return false;
    if (small.blocks == big.blocks || !small.blocks) return true;
    for (size_t t = 0; t < small.blocks->size(); ++t) {
      if (!(*big.blocks)[t].contains((*small.blocks)[t])) return false;
    }
    return true;
  };
  for (const Candidate& c : candidates) {
    if (covered(added, c)) return;
  }
  std::erase_if(candidates, [&](const Candidate& c) { return covered(c, added); });
  candidates.push_back(std::move(added));
}

/// Per tile of `op`: blocks of target's fine group that are complete before the tile starts, known from the waits
/// `kept`.
std::vector<Interval> Synchronizer::cover_through(int op, const std::vector<Candidate>& kept, int target, int depth) {
  std::vector<Interval> result(num_tiles(record(op)));
  for (const Candidate& c : kept) {
    if (c.before < target || c.wait.role != static_cast<int>(WaitRole::kAll)) continue;
    if (c.before == target) {
      for (size_t t = 0; t < result.size(); ++t) {
        join(result[t], c.full ? Interval{0, groups_[target].fine->num_blocks} : (*c.blocks)[t]);
      }
      continue;
    }
    if (depth == 0 || !small(c.before)) continue;
    const std::vector<Interval>& earlier = cover(c.before, target, depth - 1);
    if (c.full) {
      Interval all;
      for (const Interval& blocks : earlier) join(all, blocks);
      for (Interval& blocks : result) join(blocks, all);
      continue;
    }
    const CounterGroup& group = *groups_[c.before].fine;
    std::vector<Interval> of_block(group.num_blocks);
    for (size_t t = 0; t < earlier.size(); ++t) {
      const Interval& own = (*group.tile_blocks)[t];
      for (int64_t b = own.begin; b < own.end; ++b) join(of_block[b], earlier[t]);
    }
    for (size_t t = 0; t < result.size(); ++t) {
      const Interval& own = (*c.blocks)[t];
      for (int64_t b = own.begin; b < own.end; ++b) join(result[t], of_block[b]);
    }
  }
  return result;
}

const std::vector<Interval>& Synchronizer::cover(int op, int target, int depth) {
  const auto key = std::make_pair(op, target);
  if (const auto it = cover_.find(key); it != cover_.end()) return it->second;
  std::vector<Interval> result;
  if (finished_.before[op].has(target)) {
    result.assign(num_tiles(record(op)), {0, groups_[target].fine->num_blocks});
  } else {
    result = cover_through(op, kept_[op], target, depth);
  }
  return cover_.emplace(key, std::move(result)).first->second;
}

bool Synchronizer::implied(int op, const Candidate& wanted, const std::vector<Candidate>& kept) {
  // Whoever waits for at least one tile of an op has everything that all tiles of that op waited for.
  for (const Candidate& c : kept) {
    if (c.before == wanted.before) continue;
    if (c.full && finished_.after[c.before].has(wanted.before)) return true;
    if (c.some && finished_.before[c.before].has(wanted.before)) return true;
  }
  constexpr int kDepth = 5;  // ops between a value and its second reader: a residual skips about as many
  if (!wanted.fine || !wanted.blocks || !small(op)) return false;
  std::vector<Candidate> others;
  for (const Candidate& c : kept) {
    if (c.before != wanted.before) others.push_back(c);
  }
  const std::vector<Interval> have = cover_through(op, others, wanted.before, kDepth);
  for (size_t t = 0; t < have.size(); ++t) {
    if (!have[t].contains((*wanted.blocks)[t])) return false;
  }
  return true;
}

void Synchronizer::choose_waits(int op) {
  std::map<int, std::vector<Candidate>, std::greater<>> by_op;  // latest first: earlier ops cannot imply later ones
  for (const Need& need : needs_[op]) {
    if (num_tiles(record(need.dep.before)) == 0) continue;
    add_candidate(by_op[need.dep.before], candidate(op, need));
  }
  std::vector<Candidate>& kept = kept_[op];
  for (auto& [before, candidates] : by_op) {
    for (Candidate& c : candidates) {
      if (!implied(op, c, kept)) kept.push_back(std::move(c));
    }
  }
  // Too many: several waits on one op become one for all of it.
  for (auto it = by_op.begin(); it != by_op.end() && kept.size() > abi::kMaxWaits; ++it) {
    auto of_op = [&](const Candidate& c) { return c.before == it->first; };
    if (std::count_if(kept.begin(), kept.end(), of_op) < 2) continue;
    std::erase_if(kept, of_op);
    kept.push_back(full_candidate(op, it->first));
  }
  if (kept.size() > abi::kMaxWaits && overfull_ < 0) {
    overfull_ = op;
    for (const Candidate& c : kept) gathered_.push_back(c.before);
    std::sort(gathered_.begin(), gathered_.end());
    gathered_.erase(std::unique(gathered_.begin(), gathered_.end()), gathered_.end());
  }
  std::vector<WaitSource> sources;
  for (const Candidate& c : kept) sources.push_back(c.source());
  finished_.derive(op, sources);
}

}  // namespace ark::planner
