#include "planner/verify/ranks.h"

#include <algorithm>
#include <array>
#include <map>
#include <vector>

#include "planner/verify/checks.h"
#include "planner/verify/counter_blocks.h"
#include "planner/verify/rank_counters.h"

namespace ark::planner {
namespace {

using plan::Buffer;
using plan::BufferKind;
using plan::Plan;

/// A rank in a launch.
struct Run {
  int rank, launch;
};

class Merger {
 public:
  Merger(const Plan& plan, const RankRules& rules) : plan_(plan), rules_(rules), sources_(counter_sources(plan)) {
    out_.name = cat(plan.name, ", ", rules.launches, " launches of ", plan.world, " ranks");
    out_.num_workers = plan.num_workers;
    out_.programs = plan.programs;
    out_.programs.emplace_back();  // of joins
    out_.arena_bytes = plan.arena_bytes * plan.world;
    out_.num_counters = plan.num_counters * plan.world * rules.launches;
    out_.ops.reserve(2 * plan.ops.size() * static_cast<size_t>(plan.world * rules.launches));
  }

  Plan run() {
    place_memory();
    border_.assign(static_cast<size_t>(plan_.world), -1);
    for (int launch = 0; launch < rules_.launches; ++launch) {
      ends_.assign(static_cast<size_t>(plan_.world), {});
      for (size_t op = 0; op < plan_.ops.size(); ++op)
        for (int rank = 0; rank < plan_.world; ++rank) add_op(op, {rank, launch});
      for (int rank = 0; rank < plan_.world; ++rank)
        if (rules_.in_order && launch + 1 < rules_.launches) end_launch({rank, launch});
    }
    return std::move(out_);
  }

 private:
  size_t number(Run run) const { return static_cast<size_t>(run.rank * rules_.launches + run.launch); }

  // ---- memory ----

  /// Constants are the same everywhere. A rank's inputs and arena stay, its outputs are new in every launch.
  void place_memory() {
    slots_.assign(static_cast<size_t>(plan_.world * rules_.launches), std::vector<uint32_t>(plan_.buffers.size()));
    std::map<std::pair<int64_t, int32_t>, size_t> boxes;  // by the place of the exchange and the rank that sends
    for (size_t slot = 0; slot < plan_.buffers.size(); ++slot) {
      const Buffer& b = plan_.buffers[slot];
      if (b.kind == BufferKind::kBox) boxes[{box_begin(b), b.index}] = slot;
      for (int rank = 0; rank < plan_.world; ++rank)
        for (int launch = 0; launch < rules_.launches; ++launch)
          if (b.kind != BufferKind::kBoxOut) slots_[number({rank, launch})][slot] = place(slot, {rank, launch});
    }
    for (size_t slot = 0; slot < plan_.buffers.size(); ++slot) {
      const Buffer& b = plan_.buffers[slot];
      if (b.kind != BufferKind::kBoxOut) continue;
      for (int rank = 0; rank < plan_.world; ++rank)  // it sends to its own box at rank b.index
        for (int launch = 0; launch < rules_.launches; ++launch)
          slots_[number({rank, launch})][slot] = slots_[number({b.index, launch})][boxes.at({box_begin(b), rank})];
    }
  }

  uint32_t place(size_t slot, Run run) {
    const Buffer& b = plan_.buffers[slot];
    Run first{run.rank, 0};  // who has the same memory
    if (b.kind == BufferKind::kConstant) first.rank = 0;
    if (b.kind == BufferKind::kOutput) first.launch = run.launch;
    if (b.kind == BufferKind::kBox) first.launch = run.launch % rules_.box_sets;
    if (number(first) != number(run)) return slots_[number(first)][slot];
    Buffer& own = out_.buffers.emplace_back();
    own.kind = b.kind, own.size_bytes = b.size_bytes, own.immutable = b.immutable;
    own.arena_offset = b.arena_offset + (b.kind == BufferKind::kArena ? plan_.arena_bytes * run.rank : 0);
    own.name = cat("slot ", slot, " ", b.name, b.name.empty() ? "" : " ", "of rank ", run.rank);
    if (b.kind == BufferKind::kBox) own.name += cat(" from rank ", b.index, ", boxes ", first.launch);
    return static_cast<uint32_t>(out_.buffers.size() - 1);
  }

  // ---- ops ----

  void add_op(size_t index, Run run) {
    const plan::Op& op = plan_.ops[index];
    plan::Op own;
    own.record = op.record;
    own.operands = op.operands;
    own.programs = op.programs;
    own.name = cat("rank ", run.rank, ", launch ", run.launch, ", op ", index, " ", op.name);
    for (abi::Operand& x : own.operands)
      if (x.slot != abi::kNoSlot) x.slot = slots_[number(run)][x.slot];
    abi::OpRecord& r = own.record;
    for (int w = 0; w < r.num_waits; ++w) {
      abi::Wait& wait = r.wait[w];
      const std::vector<CounterBlock> awaited = awaited_counters(plan_, sources_, index, w);
      wait.counter = wait.rank_stride == 0 ? counter_of(awaited[0], run) : all_of(awaited, run.launch, wait);
      if (wait.rank_stride != 0) wait.target = wait.last_target = 1;
      wait.rank_stride = 0;
    }
    for (int a = 0; a < r.num_arrivals; ++a) {
      const bool everywhere = r.arrive_rank_stride[a] != 0;
      r.arrive[a].counter += static_cast<uint32_t>(everywhere ? run.rank * r.arrive_rank_stride[a] : 0);
      r.arrive[a].counter += first_counter(run);
      r.arrive_rank_stride[a] = 0;
    }
    // where no wait is left, what the op waits for has this one behind it
    const int64_t border = border_[static_cast<size_t>(run.rank)];
    if (border >= 0 && r.num_waits < abi::kMaxWaits) r.wait[r.num_waits++] = wait_for(border, 1);
    if (tiles_of(r) > 0) ends_[static_cast<size_t>(run.rank)].push_back(wait_for_all_tiles(own));
    out_.ops.push_back(std::move(own));
  }

  uint32_t first_counter(Run run) const {
    return static_cast<uint32_t>(number(run) * static_cast<size_t>(plan_.num_counters));
  }
  /// A counter is that of the rank that counts on it: one of another rank has got there what it has got everywhere.
  uint32_t counter_of(const CounterBlock& block, Run run) const {
    if (block.source != kOwnRank) run.rank = block.source;
    return first_counter(run) + static_cast<uint32_t>(block.first);
  }
  int32_t new_counters(int32_t count) {
    out_.num_counters += count;
    return out_.num_counters - count;
  }

  static abi::Wait wait_for(int64_t counter, uint32_t target) {
    return {.counter = static_cast<uint32_t>(counter),
            .base = 0,
            .coef = {},
            .extent = 1,
            .div = 1,
            .limit = 1,
            .target = target,
            .last_target = target,
            .role = static_cast<int32_t>(abi::WaitRole::kAll),
            .rank_stride = 0};
  }

  /// A counter that every tile arrives on: one that is there, or one more.
  abi::Wait wait_for_all_tiles(plan::Op& op) {
    abi::OpRecord& r = op.record;
    const auto tiles = static_cast<uint32_t>(tiles_of(r));
    for (const RowMap& map : arrive_maps(r)) {
      const CounterBlocks blocks = counter_blocks(r, {&map, 1});
      if (blocks.size() == 1 && blocks.ranges[0].first == blocks.ranges[0].last)
        return wait_for(blocks.ranges[0].first, tiles);
    }
    require(plan_, r.num_arrivals < abi::kMaxArrivals, op.name, ": no counter that all tiles arrive on, nor room");
    const abi::Wait wait = wait_for(new_counters(1), tiles);
    r.arrive_rank_stride[r.num_arrivals] = 0;
    r.arrive[r.num_arrivals++] = row_map(wait);
    return wait;
  }

  // ---- joins ----

  /// An empty op of so many tiles, each of which waits alike and arrives on a counter of its own.
  int32_t add_join(std::string name, int32_t tiles, std::span<const abi::Wait> waits) {
    plan::Op join;
    join.name = std::move(name);
    join.programs = {static_cast<int32_t>(out_.programs.size()) - 1};
    abi::OpRecord& r = join.record;
    r.kind = abi::TaskKind::kPointwise;
    std::fill(std::begin(r.size), std::end(r.size), 1);
    r.size[0] = tiles;
    r.grid[0] = tiles, r.grid[1] = r.grid[2] = 1;
    abi::ProgramParams& params = r.params.program;
    params.program = join.programs[0];
    params.num_dims = 1;
    params.tile = params.split = params.num_rows = params.row_size = 1;
    for (const abi::Wait& wait : waits) r.wait[r.num_waits++] = wait;
    const int32_t counter = new_counters(tiles);
    r.arrive[0] = {static_cast<uint32_t>(counter), 0, {1, 0, 0}, 1, 1, tiles};
    r.num_arrivals = 1;
    out_.ops.push_back(std::move(join));
    return counter;
  }

  /// Any number of waits, joined tile by tile, by several joins where a record has no room for all.
  int32_t join_all(const std::string& name, int32_t tiles, std::span<const abi::Wait> waits) {
    std::vector<abi::Wait> now;
    int32_t counter = -1;
    while (!waits.empty() || counter < 0) {
      now.clear();
      if (counter >= 0) {
        now.push_back(wait_for(counter, 1));
        now[0].limit = tiles, now[0].coef[0] = 1;
      }
      const size_t count = std::min(waits.size(), abi::kMaxWaits - now.size());
      now.insert(now.end(), waits.begin(), waits.begin() + static_cast<std::ptrdiff_t>(count));
      waits = waits.subspan(count);
      counter = add_join(name, tiles, now);
    }
    return counter;
  }

  /// What stands for the counters of all ranks: one counter for each of a rank's.
  uint32_t all_of(const std::vector<CounterBlock>& awaited, int launch, const abi::Wait& wait) {
    const int32_t count = awaited[0].count;
    const std::array<int64_t, 6> key = {launch, wait.counter, wait.rank_stride, count, wait.target, wait.last_target};
    const auto known = joined_.find(key);
    if (known != joined_.end()) return known->second;
    std::vector<abi::Wait> waits;
    for (const CounterBlock& block : awaited) {
      abi::Wait one = wait_for(counter_of(block, {block.source, launch}), wait.target);
      one.limit = count, one.coef[0] = 1, one.last_target = wait.last_target;
      waits.push_back(one);
    }
    const int32_t counter = join_all(cat("launch ", launch, ", all ranks at counter ", wait.counter), count, waits);
    return joined_[key] = static_cast<uint32_t>(counter);
  }

  void end_launch(Run run) {
    border_[static_cast<size_t>(run.rank)] =
        join_all(cat("rank ", run.rank, ", end of launch ", run.launch), 1, ends_[static_cast<size_t>(run.rank)]);
  }

  const Plan& plan_;
  const RankRules rules_;
  const std::vector<CounterSource> sources_;
  Plan out_;
  std::vector<std::vector<uint32_t>> slots_;  // per run: of the slots of the plan
  std::map<std::array<int64_t, 6>, uint32_t> joined_;
  std::vector<std::vector<abi::Wait>> ends_;  // per rank: for each op of the launch
  std::vector<int64_t> border_;               // per rank: counter of the end of the launch before, or -1
};

}  // namespace

Plan merge_ranks(const Plan& plan, const RankRules& rules) { return Merger(plan, rules).run(); }

void verify_ranks(const Plan& plan, VerifyReport& report, const RankRules& rules) {
  if (plan.world == 1) return;
  const Plan merged = merge_ranks(plan, rules);
  verify_counters(merged);
  verify_memory(merged, report);
}

}  // namespace ark::planner
