#include "planner/order/synchronize.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "device/abi/roles.h"
#include "plan/early_reads.h"
#include "planner/depend.h"
#include "planner/order/synchronizer.h"

namespace ark::planner {

using abi::TaskKind;
using abi::WaitRole;

namespace {

/// Of joined boxes: where in a box a tile lies, whichever. Who waits for an exchange waits for all ranks, and these
/// send alike. Tiles that reach over several boxes may be anywhere.
Footprint within_box(Footprint f, int64_t box, const abi::OpRecord& record) {
  const int64_t begin = f.base % box;
  int64_t reach = begin + f.extent;
  for (int i = 0; i < 3; ++i) {
    if (f.step[i] % box == 0) f.step[i] = 0;
    reach += f.step[i] * (record.grid[i] - 1);
    if (f.step[i] < 0) reach = box + 1;
  }
  if (reach > box) return {.extent = box, .last = box - 1};
  return {begin, {f.step[0], f.step[1], f.step[2]}, f.extent, begin, reach - 1, f.granule};
}

}  // namespace

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
  if (storage.joined_boxes()) {
    const int64_t box = storage.num_elements / world_of(draft_.graph, storage.group);
    need.own = within_box(need.own, box, record(dep.before));
    need.reads = within_box(need.reads, box, op.op.record);
  }
  const bool sent = storage.joined_boxes() && dep.hazard == Hazard::kReadAfterWrite && need.reads.step[0] == 0;
  if (sent && abi::has_own_rows(op.op.record) && dep.operand == abi::MatmulOperand::kA) need.role = WaitRole::kSource;
  const bool cache = dep.operand == abi::AttentionOperand::kK || dep.operand == abi::AttentionOperand::kV;
  if (cache && dep.hazard == Hazard::kReadAfterWrite && plan::has_early_cache(op.op)) need.role = WaitRole::kFresh;
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
  note_deciding_readers();
}

/// A reader that comes behind another one whose tiles read as much or more (a residual behind the product that the norm
/// is for) has waited through that one, mostly: counters as fine as its own would only be more to poll.
void Synchronizer::note_deciding_readers() {
  std::vector<OpSet> earlier(ops_.size(), OpSet(num_ops()));
  for (int i = 0; i < num_ops(); ++i) {
    for (const Need& need : needs_[i]) {
      earlier[i].add(earlier[need.dep.before]);
      earlier[i].add(need.dep.before);
    }
  }
  deciding_.resize(ops_.size());
  for (int i = 0; i < num_ops(); ++i) {
    for (const Need& need : readers_[i]) {
      const bool comes_later = std::any_of(readers_[i].begin(), readers_[i].end(), [&](const Need& other) {
        return !other.anywhere && !need.anywhere && other.share() >= need.share() &&
               earlier[need.dep.op].has(other.dep.op);
      });
      if (!comes_later) deciding_[i].push_back(need);
    }
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
  if (has_uneven(draft_.graph) && is_exchange(draft_.graph, ops_[op])) return;
  if (record(op).kind == TaskKind::kMatmulRows && record(op).params.rows.m > 1) return;
  std::map<int, std::pair<int, int64_t>> votes;  // operand -> (readers, smallest extent in positions of the axis)
  for (const Need& need : deciding_[op]) {
    if (need.anywhere || need.reads_most() || !small(need.dep.op)) continue;
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
  for (const Need& need : deciding_[op]) {
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
  for (const Need& need : deciding_[op]) {
    if (need.anywhere || !small(need.dep.op) || need.reads_most()) continue;
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

Sync Synchronizer::write() {
  Sync sync;
  sync.sources.resize(ops_.size());
  sync.whole_counter.assign(ops_.size(), -1);
  std::vector<std::array<bool, 2>> used(ops_.size(), {false, false});
  for (const auto& kept : kept_) {
    for (const Candidate& c : kept) used[c.before][c.fine] = true;
  }
  draft_.num_counters = 0;
  for (const FusedOp& op : ops_) exchanges_.push_back(group_sent_to(draft_.graph, op));
  for (int i = 0; i < num_ops() && has_uneven(draft_.graph); ++i) {
    if (exchanges_[i] < 0) continue;
    used[i][0] = true;  // others may wait where this rank does not
    if (!groups_[i].whole) groups_[i].whole = whole_group(record(i));
  }
  auto number = [&](int i) {
    abi::OpRecord& r = ops_[i].op.record;
    r.num_arrivals = 0;
    auto assign = [&](std::optional<CounterGroup>& group) {
      group->counter = draft_.num_counters;
      draft_.num_counters += group->num_blocks * (exchanges_[i] >= 0 ? world_of(draft_.graph, exchanges_[i]) : 1);
      group->arrive.counter = static_cast<uint32_t>(group->counter);
      r.arrive_rank_stride[r.num_arrivals] = exchanges_[i] >= 0 ? group->num_blocks : 0;
      r.arrive[r.num_arrivals++] = group->arrive;
    };
    if (used[i][1]) assign(groups_[i].fine);
    if (used[i][0]) {
      assign(groups_[i].whole);
      sync.whole_counter[i] = groups_[i].whole->counter;
    }
  };
  // Other ranks arrive on the counters of exchanges: these come first, whatever else a rank counts.
  for (int32_t group = 0; group < num_groups(draft_.graph); ++group) {
    if (group > 0) draft_.graph.more_groups[static_cast<size_t>(group) - 1].first_counter = draft_.num_counters;
    for (int i = 0; i < num_ops(); ++i)
      if (exchanges_[i] == group) number(i);
  }
  for (int i = 0; i < num_ops(); ++i)
    if (exchanges_[i] < 0) number(i);
  for (int i = 0; i < num_ops(); ++i) {
    abi::OpRecord& r = ops_[i].op.record;
    r.num_waits = 0;
    for (const Candidate& c : kept_[i]) {
      if (r.num_waits == abi::kMaxWaits) break;  // overfull: the caller gathers and runs again
      abi::Wait& wait = r.wait[r.num_waits++];
      wait = c.wait;
      const CounterGroup& group = *(c.fine ? groups_[c.before].fine : groups_[c.before].whole);
      wait.counter = static_cast<uint32_t>(group.counter);
      wait.rank_stride = exchanges_[c.before] >= 0 ? group.num_blocks : 0;
      sync.sources[i].push_back(c.source());
    }
  }
  return sync;
}

namespace {

/// An empty op that comes after `gathered`.
FusedOp join_of(FusedGraph& graph, const std::vector<int>& gathered) {
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
  return join;
}

/// Puts an empty op before `op` that comes after `gathered`; waits for them then follow from the wait for it.
void insert_join(FusedGraph& graph, int op, const std::vector<int>& gathered) {
  FusedOp join = join_of(graph, gathered);
  for (int i = op; i < static_cast<int>(graph.ops.size()); ++i) {
    for (int& before : graph.ops[i].after) before += before >= op;
  }
  graph.ops[op].after.push_back(op);
  graph.ops.insert(graph.ops.begin() + op, std::move(join));
}

/// A launch of a rank must not end before the others have begun it (two sets of boxes would not be enough). Who reads a
/// box waits for that; where nobody does, an empty op at the end. Ranks of each group.
void await_exchange(FusedGraph& graph, int32_t group) {
  int last = -1;
  for (int i = 0; i < static_cast<int>(graph.ops.size()); ++i) {
    const FusedOp& op = graph.ops[i];
    if (group_sent_to(graph, op) == group) last = i;
    for (size_t x = 0; x < op.access.size(); ++x) {
      const uint32_t slot = op.op.operands[x].slot;
      if (slot == abi::kNoSlot || op.access[x] != Access::kRead) continue;
      const Storage& storage = graph.storages[slot];
      if ((storage.exchange >= 0 || storage.part >= 0) && storage.group == group) return;
    }
  }
  if (last >= 0) graph.ops.push_back(join_of(graph, {last}));
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
  for (int32_t group = 0; group < num_groups(draft.graph); ++group) await_exchange(draft.graph, group);
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
  const int32_t sent_to = group_sent_to(draft.graph, draft.graph.ops[before]);
  const bool exchange = sent_to >= 0;
  if (sync.whole_counter[before] < 0) {
    if (writer.num_arrivals == abi::kMaxArrivals || (exchange && has_several_groups(draft.graph))) return false;
    sync.whole_counter[before] = draft.num_counters;
    draft.num_counters += exchange ? world_of(draft.graph, sent_to) : 1;
    writer.arrive_rank_stride[writer.num_arrivals] = exchange;
    writer.arrive[writer.num_arrivals] = group.arrive;
    writer.arrive[writer.num_arrivals++].counter = static_cast<uint32_t>(sync.whole_counter[before]);
  }
  abi::Wait wait = wait_for_all(group);
  wait.counter = static_cast<uint32_t>(sync.whole_counter[before]);
  wait.rank_stride = exchange;
  reader.wait[reader.num_waits++] = wait;
  sync.sources[op].push_back({before, true, true, true});
  return true;
}

}  // namespace ark::planner
