#include "planner/verify/ranks.h"

#include <algorithm>
#include <array>
#include <map>
#include <vector>

#include "device/abi/roles.h"
#include "planner/verify/checks.h"
#include "planner/verify/counter_blocks.h"
#include "planner/verify/joins.h"
#include "planner/verify/rank_counters.h"
#include "planner/verify/rank_slots.h"

namespace ark::planner {
namespace {

using plan::Plan;

class Merger {
 public:
  Merger(const Plan& plan, const RankRules& rules) : plan_(plan), rules_(rules), sources_(counter_sources(plan)) {
    out_.name = cat(plan.name, ", ", rules.launches, " launches of ", plan.world, " ranks");
    out_.num_workers = plan.num_workers;
    out_.programs = plan.programs;
    out_.programs.emplace_back();  // empty: of joins
    out_.num_counters = plan.num_counters * plan.world * rules.launches;
    out_.ops.reserve(2 * plan.ops.size() * static_cast<size_t>(plan.world * rules.launches));
  }

  Plan run() {
    slots_ = place_ranks(plan_, rules_, out_);
    for (size_t op = 0; op < plan_.ops.size(); ++op) look_at(op);
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
  // ---- ops ----

  /// What is the same on all ranks and in all launches.
  void look_at(size_t index) {
    const abi::OpRecord& r = plan_.ops[index].record;
    Look& look = looks_.emplace_back();
    for (int w = 0; w < r.num_waits; ++w) look.awaited.push_back(awaited_counters(plan_, sources_, index, w));
    for (int a = 0; a < r.num_arrivals && look.whole < 0; ++a) {
      const RowMap map = row_map(r.arrive[a]);
      const CounterBlocks blocks = counter_blocks(r, {&map, 1});
      if (blocks.size() == 1 && blocks.ranges[0].first == blocks.ranges[0].last) look.whole = a;
    }
    require(plan_, look.whole >= 0 || r.num_arrivals < abi::kMaxArrivals, describe(plan_, static_cast<int64_t>(index)),
            " has no counter that all of its tiles arrive on, nor room for one");
  }

  void add_op(size_t index, Run run) {
    const plan::Op& op = plan_.ops[index];
    if (!abi::has_own_rows(op.record)) return add_part(index, run, op);
    for (int batch = 0; batch < op.record.grid[abi::GridAxis::kBatch]; ++batch)
      add_part(index, run, batch_of(op, batch, batch == run.rank), batch);
  }

  /// A batch of a product with own rows as an op of its own, which reads what it reads on a rank.
  static plan::Op batch_of(const plan::Op& op, int batch, bool own_rank) {
    using X = abi::MatmulOperand;
    plan::Op part = op;
    abi::OpRecord& r = part.record;
    abi::Operand& own = part.operands[X::kOwn];
    if (own_rank) part.operands[X::kA] = own;
    own.slot = abi::kNoSlot;
    r.grid[abi::GridAxis::kBatch] = 1;
    r.size[0] = 1;
    r.params.matmul.batch = 1;
    r.params.matmul.own_rows = 0;
    for (abi::Operand& x : part.operands) x.offset += batch * x.stride[0];
    for (int w = 0; w < r.num_waits; ++w) r.wait[w].base += batch * r.wait[w].coef[0];
    for (int a = 0; a < r.num_arrivals; ++a) r.arrive[a].base += batch * r.arrive[a].coef[0];
    return part;
  }

  /// `batch`: the op is that part of one; -1: it is all of it.
  void add_part(size_t index, Run run, const plan::Op& op, int batch = -1) {
    plan::Op own;
    own.record = op.record;
    own.operands = op.operands;
    own.programs = op.programs;
    own.name = cat("rank ", run.rank, ", launch ", run.launch, ", op ", index, " ", op.name);
    for (abi::Operand& x : own.operands)
      if (x.slot != abi::kNoSlot) x.slot = slots_[number_of(run, rules_)][x.slot];
    abi::OpRecord& r = own.record;
    r.num_waits = 0;
    for (int w = 0; w < op.record.num_waits; ++w) {
      abi::Wait wait = op.record.wait[w];
      const bool source = wait.role == static_cast<int32_t>(abi::WaitRole::kSource);
      if (source && batch == run.rank) continue;
      const std::vector<CounterBlock>& awaited = looks_[index].awaited[static_cast<size_t>(w)];
      if (source) {
        wait.counter = counter_of(awaited.at(static_cast<size_t>(std::max(batch, 0))), run);
        wait.role = static_cast<int32_t>(abi::WaitRole::kAll);
      } else {
        wait.counter = wait.rank_stride == 0 ? counter_of(awaited[0], run) : all_of(awaited, run.launch, wait);
        if (wait.rank_stride != 0) wait.target = wait.last_target = 1;
      }
      wait.rank_stride = 0;
      r.wait[r.num_waits++] = wait;
    }
    for (int a = 0; a < r.num_arrivals; ++a) {
      const bool everywhere = r.arrive_rank_stride[a] != 0;
      r.arrive[a].counter += static_cast<uint32_t>(everywhere ? run.rank * r.arrive_rank_stride[a] : 0);
      r.arrive[a].counter += first_counter(run);
      r.arrive_rank_stride[a] = 0;
    }
    // where no wait is left, what the op waits for has this one behind it
    const int64_t border = border_[static_cast<size_t>(run.rank)];
    if (border >= 0 && r.num_waits < abi::kMaxWaits) r.wait[r.num_waits++] = wait_for_counters(border, 1, 1);
    if (tiles_of(r) > 0) end_part(own, index, run.rank, batch);
    out_.ops.push_back(std::move(own));
  }

  uint32_t first_counter(Run run) const {
    return static_cast<uint32_t>(number_of(run, rules_) * static_cast<size_t>(plan_.num_counters));
  }
  /// A counter is that of the rank that counts on it: one of another rank has got there what it has got everywhere.
  uint32_t counter_of(const CounterBlock& block, Run run) const {
    if (block.source != kOwnRank) run.rank = block.source;
    return first_counter(run) + static_cast<uint32_t>(block.first);
  }
  /// The rank's launch ends when all tiles have: the parts of an op arrive on one counter.
  void end_part(plan::Op& op, size_t index, int rank, int batch) {
    std::vector<abi::Wait>& ends = ends_[static_cast<size_t>(rank)];
    const int whole = looks_[index].whole;
    if (batch <= 0) return ends.push_back(wait_for_all_tiles(op, whole, tiles_of(plan_.ops[index].record)));
    if (whole >= 0) return;
    op.record.arrive_rank_stride[op.record.num_arrivals] = 0;
    op.record.arrive[op.record.num_arrivals++] = row_map(ends.back());
  }
  /// On the counter of arrival `whole`, or of one more.
  abi::Wait wait_for_all_tiles(plan::Op& op, int whole, int64_t count) {
    abi::OpRecord& r = op.record;
    const auto tiles = static_cast<uint32_t>(count);
    if (whole >= 0) {
      const RowMap map = row_map(r.arrive[whole]);
      return wait_for_counters(counters_at(map, {}).first, 1, tiles);
    }
    const abi::Wait wait = wait_for_counters(new_counters(out_, 1), 1, tiles);
    r.arrive_rank_stride[r.num_arrivals] = 0;
    r.arrive[r.num_arrivals++] = row_map(wait);
    return wait;
  }

  // ---- joins ----

  /// What stands for the counters of all ranks: one counter for each of a rank's.
  uint32_t all_of(const std::vector<CounterBlock>& awaited, int launch, const abi::Wait& wait) {
    const int32_t count = awaited[0].count;
    const std::array<int64_t, 6> key = {launch, wait.counter, wait.rank_stride, count, wait.target, wait.last_target};
    const auto known = joined_.find(key);
    if (known != joined_.end()) return known->second;
    std::vector<abi::Wait> waits;
    for (const CounterBlock& block : awaited) {
      abi::Wait one = wait_for_counters(counter_of(block, {block.source, launch}), count, wait.target);
      one.last_target = wait.last_target;
      waits.push_back(one);
    }
    const int64_t counter =
        add_joins(out_, cat("launch ", launch, ", all ranks at counter ", wait.counter), count, waits);
    return joined_[key] = static_cast<uint32_t>(counter);
  }

  void end_launch(Run run) {
    border_[static_cast<size_t>(run.rank)] = add_joins(out_, cat("rank ", run.rank, ", end of launch ", run.launch), 1,
                                                       ends_[static_cast<size_t>(run.rank)]);
  }

  /// Of an op of the plan.
  struct Look {
    std::vector<std::vector<CounterBlock>> awaited;  // per wait
    int whole = -1;                                  // the arrival whose one counter all tiles arrive on
  };

  const Plan& plan_;
  const RankRules rules_;
  const std::vector<CounterSource> sources_;
  Plan out_;
  std::vector<Look> looks_;
  std::vector<std::vector<uint32_t>> slots_;  // per run: of the slots of the plan
  std::map<std::array<int64_t, 6>, uint32_t> joined_;
  std::vector<std::vector<abi::Wait>> ends_;  // per rank: for each op of the launch
  std::vector<int64_t> border_;               // per rank: counter of the end of the launch before, or -1
};

}  // namespace

Plan plan_of_group(const Plan& plan, int32_t group) {
  Plan one = plan;
  const plan::RankGroup own = group_at(plan, group);
  one.name = cat(plan.name, ", group '", own.name, "'");
  one.group = own.name, one.world = own.world, one.box_bytes = own.box_bytes;
  one.more_groups.clear();
  std::vector<int64_t> begin;  // per group: of its boxes in the arena
  for (int32_t g = 0; g < num_groups(plan); ++g) {
    begin.push_back(one.arena_bytes);
    if (g != group) one.arena_bytes += plan::box_stride(box_bytes_of(plan, g));
  }
  for (size_t slot = 0; slot < plan.buffers.size(); ++slot) {
    const plan::Buffer& b = plan.buffers[slot];
    one.buffers[slot].group = 0;
    if (!is_any_box(b.kind) || b.group == group) continue;
    one.buffers[slot].kind = plan::BufferKind::kArena;
    one.buffers[slot].twin = -1;
    one.buffers[slot].arena_offset =
        begin[static_cast<size_t>(b.group)] + plan.buffers[memory_slot(plan, static_cast<uint32_t>(slot))].arena_offset;
  }
  for (plan::Op& op : one.ops) {
    abi::OpRecord& r = op.record;
    for (int w = 0; w < r.num_waits; ++w)
      if (group_of_counter(plan, r.wait[w].counter) != group) r.wait[w].rank_stride = 0;
    for (int a = 0; a < r.num_arrivals; ++a)
      if (group_of_counter(plan, r.arrive[a].counter) != group) r.arrive_rank_stride[a] = 0;
  }
  return one;
}

Plan merge_ranks(const Plan& plan, const RankRules& rules) { return Merger(plan, rules).run(); }

void verify_ranks(const Plan& plan, VerifyReport& report, const RankRules& rules) {
  for (int32_t group = 0; group < num_groups(plan); ++group) {
    const Plan merged = merge_ranks(plan.more_groups.empty() ? plan : plan_of_group(plan, group), rules);
    verify_counters(merged);
    verify_memory(merged, report);
  }
}

}  // namespace ark::planner
