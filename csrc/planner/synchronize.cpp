#include "planner/synchronize.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "base/check.h"
#include "planner/depend.h"

namespace ark::planner {
namespace {

using abi::TaskKind;
using abi::WaitRole;

/// A dependence with the footprints of its ends.
struct Need {
  Dependence dep;
  Footprint own{}, reads{};  // what `before` touches through its operand, what the waiting op touches through its own
  WaitRole role = WaitRole::kAll;
  bool anywhere = false;  // no footprints: the whole of `before`
};

struct Groups {
  std::optional<CounterGroup> fine, whole;
};

/// A wait that an op needs, and the group that it reads.
struct Candidate {
  int before = -1;
  bool fine = false;
  abi::Wait wait{};
  Blocks blocks{};  // per tile of the waiting op; null: every tile waits for everything
  bool full = false, some = false, together = false;  // as in WaitSource

  WaitSource source() const { return {before, full, some, together}; }
};

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

class Synchronizer {
 public:
  Synchronizer(Draft& draft, const Options& options)
      : draft_(draft), ops_(draft.graph.ops), options_(options), finished_(static_cast<int>(ops_.size())) {}

  Sync run() {
    collect_needs();
    for (int i = 0; i < num_ops(); ++i) choose_fine_group(i);
    kept_.resize(ops_.size());
    for (int i = 0; i < num_ops(); ++i) choose_waits(i);
    return write();
  }
  /// An op that needs too many waits even so; run() has then left the draft as it was.
  int overfull() const { return overfull_; }
  std::vector<int> gathered() const { return gathered_; }

 private:
  int num_ops() const { return static_cast<int>(ops_.size()); }
  const abi::OpRecord& record(int op) const { return ops_[op].op.record; }
  bool small(int op) const { return num_tiles(record(op)) <= kMaxTilesForFine; }

  void collect_needs();
  Need need_of(const Dependence& dep) const;
  void choose_fine_group(int op);
  Axis axis_of(int op, const Footprint& own) const;
  double score_of(int op, const CounterGroup& group);
  Candidate candidate(int op, const Need& need);
  Candidate full_candidate(int op, int before);
  void add_candidate(std::vector<Candidate>& candidates, Candidate candidate) const;
  void choose_waits(int op);
  bool implied(int op, const Candidate& wanted, const std::vector<Candidate>& kept);
  std::vector<Interval> cover_through(int op, const std::vector<Candidate>& kept, int target, int depth);
  const std::vector<Interval>& cover(int op, int target, int depth);
  Sync write();

  Draft& draft_;
  std::vector<FusedOp>& ops_;
  const Options& options_;
  std::vector<std::vector<Need>> needs_, readers_;  // by waiting op; by op that is waited for
  std::vector<Groups> groups_;
  CounterMemo memo_;
  std::vector<std::vector<Candidate>> kept_;
  Finished finished_;
  std::map<std::pair<int, int>, std::vector<Interval>>
      cover_;  // (op, group's owner) -> blocks finished before each tile
  int overfull_ = -1;
  std::vector<int> gathered_;
};

bool covers_most(const Footprint& reads, const Footprint& own) {
  return reads.extent >= (own.last - own.first + 1) - (own.last - own.first + 1) / 8;
}

Need Synchronizer::need_of(const Dependence& dep) const {
  Need need{.dep = dep};
  if (dep.hazard == Hazard::kAfter) {
    need.anywhere = true;
    return need;
  }
  const Storage& storage = draft_.graph.storages[dep.storage];
  const FusedOp& op = ops_[dep.op];
  need.own = footprint(ops_[dep.before].op, draft_.graph.programs, dep.before_operand, storage);
  need.reads = footprint(op.op, draft_.graph.programs, dep.operand, storage);
  const bool cache = dep.operand == 1 || dep.operand == 2;
  if (record(dep.op).kind == TaskKind::kAttentionDecode && cache && dep.hazard == Hazard::kReadAfterWrite &&
      record(dep.op).params.attention.fresh_operand >= 0) {
    need.role = WaitRole::kFresh;
  }
  return need;
}

void Synchronizer::collect_needs() {
  needs_.resize(ops_.size());
  readers_.resize(ops_.size());
  groups_.resize(ops_.size());
  if (draft_.deps.size() != ops_.size()) draft_.deps = dependences(draft_.graph);
  const auto& deps = draft_.deps;
  for (int i = 0; i < num_ops(); ++i) {
    for (const Dependence& dep : deps[i]) needs_[i].push_back(need_of(dep));
    if (options_.schedule == Schedule::kSequential && i > 0) {
      needs_[i].push_back(need_of({i - 1, i, Hazard::kAfter}));
    }
    for (const Need& need : needs_[i]) readers_[need.dep.before].push_back(need);
  }
}

/// Tiles of `op` on the axis that its fine group would cut. Few-row matmuls are cut by units, so that segments that
/// write different storages share the group.
Axis Synchronizer::axis_of(int op, const Footprint& own) const {
  if (record(op).kind == TaskKind::kMatmulRows) return {{1, 0, 0}, 1, num_tiles(record(op))};
  Axis axis;
  std::copy(own.step, own.step + 3, axis.step);
  axis.extent = own.extent;
  axis.total = own.last - own.first + 1;
  return axis;
}

/// The operand through which most readers see less than everything decides the axis; the finest of them the block
/// length.
void Synchronizer::choose_fine_group(int op) {
  if (options_.schedule == Schedule::kSequential || !small(op)) return;
  if (record(op).kind == TaskKind::kMatmulRows && record(op).params.rows.m > 1) return;
  std::map<int, std::pair<int, int64_t>> votes;  // operand -> (readers, smallest extent in positions of the axis)
  for (const Need& need : readers_[op]) {
    if (need.anywhere || covers_most(need.reads, need.own) || !small(need.dep.op)) continue;
    if (record(op).kind != TaskKind::kMatmulRows && need.own.base != need.own.first) continue;  // walks backwards
    int64_t extent = need.reads.extent;
    if (record(op).kind == TaskKind::kMatmulRows) {
      if (need.own.step[0] <= 0) continue;
      if (need.own.granule > 0 && extent < need.own.granule) extent = need.own.granule;
      extent = std::max<int64_t>(1, extent / need.own.step[0]);
    }
    auto [it, is_new] = votes.try_emplace(need.dep.before_operand, 0, extent);
    ++it->second.first;
    it->second.second = std::min(it->second.second, extent);
  }
  int best = -1;
  for (const auto& [operand, vote] : votes) {
    if (best < 0 || vote.first > votes[best].first) best = operand;
  }
  if (best < 0) return;
  int64_t extent = votes[best].second;
  if (record(op).kind == TaskKind::kMatmulRows) {
    for (const auto& [operand, vote] : votes) extent = std::min(extent, vote.second);
  }
  for (const Need& need : readers_[op]) {
    if (need.dep.before_operand != best || need.anywhere) continue;
    double best_score = 1e30;
    for (const CounterGroup& group : memo_.groups(record(op), axis_of(op, need.own), extent)) {
      const double score = score_of(op, group);
      if (score < best_score) best_score = score, groups_[op].fine = group;
    }
    return;
  }
}

/// How well a group serves the readers: positions waited for per position wanted, and what polling a counter costs.
double Synchronizer::score_of(int op, const CounterGroup& group) {
  constexpr double kPollCost = 0.02;  // of reading too much once; 32 lanes poll together
  double score = 0;
  for (const Need& need : readers_[op]) {
    if (need.anywhere || !small(need.dep.op) || covers_most(need.reads, need.own)) continue;
    const std::optional<Scale> scale = memo_.scale(group, record(op), need.own);
    const std::optional<abi::Wait> wait =
        scale ? make_wait(group, *scale, need.reads, record(need.dep.op)) : std::nullopt;
    if (!wait) {
      score += static_cast<double>(need.own.last - need.own.first + 1) / static_cast<double>(need.reads.extent);
      continue;
    }
    int64_t blocks = 0;
    const std::vector<Interval>& per_tile = *memo_.blocks(*wait, record(need.dep.op));
    for (const Interval& interval : per_tile) blocks += interval.end - interval.begin;
    const double mean = static_cast<double>(blocks) / static_cast<double>(std::max<size_t>(1, per_tile.size()));
    score += mean * static_cast<double>(scale->block) / static_cast<double>(need.reads.extent) + kPollCost * mean;
  }
  return score;
}

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

Candidate Synchronizer::candidate(int op, const Need& need) {
  const int before = need.dep.before;
  const std::optional<CounterGroup>& fine = groups_[before].fine;
  if (!fine || need.anywhere || !small(op) || covers_most(need.reads, need.own)) return full_candidate(op, before);
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
    if (big.full) return true;
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

Sync Synchronizer::write() {
  Sync sync;
  sync.sources.resize(ops_.size());
  sync.whole_counter.assign(ops_.size(), -1);
  std::vector<std::array<bool, 2>> used(ops_.size(), {false, false});
  for (const auto& kept : kept_) {
    for (const Candidate& c : kept) used[c.before][c.fine] = true;
  }
  draft_.num_counters = 0;
  for (int i = 0; i < num_ops(); ++i) {
    abi::OpRecord& r = ops_[i].op.record;
    r.num_arrivals = 0;
    auto assign = [&](std::optional<CounterGroup>& group) {
      group->counter = draft_.num_counters;
      draft_.num_counters += group->num_blocks;
      group->arrive.counter = static_cast<uint32_t>(group->counter);
      r.arrive[r.num_arrivals++] = group->arrive;
    };
    if (used[i][1]) assign(groups_[i].fine);
    if (used[i][0]) {
      assign(groups_[i].whole);
      sync.whole_counter[i] = groups_[i].whole->counter;
    }
    r.num_waits = 0;
    for (const Candidate& c : kept_[i]) {
      if (r.num_waits == abi::kMaxWaits) break;  // overfull: the caller gathers and runs again
      abi::Wait& wait = r.wait[r.num_waits++];
      wait = c.wait;
      wait.counter = static_cast<uint32_t>((c.fine ? groups_[c.before].fine : groups_[c.before].whole)->counter);
      sync.sources[i].push_back(c.source());
    }
  }
  return sync;
}

/// Puts an empty op before `op` that comes after `gathered`; waits for them then follow from the wait for it.
void insert_join(FusedGraph& graph, int op, const std::vector<int>& gathered) {
  Program empty;
  auto program = std::find(graph.programs.begin(), graph.programs.end(), empty);
  if (program == graph.programs.end()) program = graph.programs.insert(program, empty);
  FusedOp join;
  join.op.name = "join";
  join.op.record.kind = TaskKind::kPointwise;
  join.op.programs = {static_cast<int>(program - graph.programs.begin())};
  std::fill(std::begin(join.op.record.size), std::end(join.op.record.size), 1);
  std::fill(std::begin(join.op.record.grid), std::end(join.op.record.grid), 1);
  abi::ProgramParams& params = join.op.record.params.program;
  params.program = join.op.programs[0];
  params.num_dims = 1;
  params.tile = params.split = params.num_rows = params.row_size = 1;
  join.after = gathered;
  for (int i = op; i < static_cast<int>(graph.ops.size()); ++i) {
    for (int& before : graph.ops[i].after) before += before >= op;
  }
  graph.ops[op].after.push_back(op);
  graph.ops.insert(graph.ops.begin() + op, std::move(join));
}

}  // namespace

void Finished::derive(int op, const std::vector<WaitSource>& sources) {
  before[op].clear();
  for (const WaitSource& source : sources) {
    if (source.full) before[op].add(after[source.before]);
    if (source.some) before[op].add(before[source.before]);
  }
  after[op] = before[op];
  after[op].add(op);
  for (const WaitSource& source : sources) {
    if (source.together) after[op].add(after[source.before]);
  }
}

Sync synchronize(Draft& draft, const Options& options) {
  for (;;) {
    Synchronizer pass(draft, options);
    Sync sync = pass.run();
    if (pass.overfull() < 0) return sync;
    std::vector<int> gathered = pass.gathered();
    check(gathered.size() > 1, "op '", draft.graph.ops[pass.overfull()].op.name, "' has too many waits on one op");
    if (gathered.size() > abi::kMaxWaits) gathered.resize(abi::kMaxWaits);
    insert_join(draft.graph, pass.overfull(), gathered);
  }
}

bool add_full_wait(Draft& draft, Sync& sync, int op, int before) {
  abi::OpRecord& reader = draft.graph.ops[op].op.record;
  abi::OpRecord& writer = draft.graph.ops[before].op.record;
  if (reader.num_waits == abi::kMaxWaits || num_tiles(writer) == 0) return false;
  CounterGroup group = whole_group(writer);
  if (sync.whole_counter[before] < 0) {
    if (writer.num_arrivals == abi::kMaxArrivals) return false;
    sync.whole_counter[before] = draft.num_counters++;
    writer.arrive[writer.num_arrivals] = group.arrive;
    writer.arrive[writer.num_arrivals++].counter = static_cast<uint32_t>(sync.whole_counter[before]);
  }
  abi::Wait wait = wait_for_all(group);
  wait.counter = static_cast<uint32_t>(sync.whole_counter[before]);
  reader.wait[reader.num_waits++] = wait;
  sync.sources[op].push_back({before, true, true, true});
  return true;
}

}  // namespace ark::planner
