#include "planner/planner.h"

#include <string>
#include <utility>

#include "base/check.h"
#include "plan/few_rows_form.h"
#include "planner/cost.h"
#include "planner/draft.h"
#include "planner/early_reads.h"
#include "planner/flag_words.h"
#include "planner/order/order_ops.h"
#include "planner/order/place_memory.h"
#include "planner/order/schedule.h"
#include "planner/order/synchronize.h"
#include "planner/tile/pair_decode_tiles.h"
#include "planner/tile/share_programs.h"
#include "planner/tile/tile.h"
#include "planner/verify/verify_plan.h"

namespace ark::planner {
namespace {

/// The loop with slots for the graph's inputs.
plan::Loop loop_of(const ir::Loop& loop, const plan::Plan& plan) {
  plan::Loop result;
  if (!loop.any()) return result;
  auto slot_of = [&](int32_t input) {
    for (size_t slot = 0; slot < plan.buffers.size(); ++slot)
      if (plan.buffers[slot].kind == plan::BufferKind::kInput && plan.buffers[slot].index == input)
        return static_cast<int32_t>(slot);
    throw InternalError(cat("plan ", plan.name, ": input ", input, " of a loop has no slot"));
  };
  for (int32_t input : loop.carried) result.carried.push_back(slot_of(input));
  if (loop.go >= 0) result.go_slot = slot_of(loop.go);
  for (const auto& list : plan.lists) result.arrivals += !list.empty();
  return result;
}

/// Numbers the records and moves everything into the plan.
void finish(Draft&& draft, const Options& options, plan::Plan& plan) {
  plan.num_workers = options.machine.num_workers;
  plan.ops.reserve(draft.graph.ops.size());
  for (size_t i = 0; i < draft.graph.ops.size(); ++i) {
    plan::Op& op = draft.graph.ops[i].op;
    op.record.op = static_cast<int>(i);
    op.record.num_operands = static_cast<int>(op.operands.size());
    op.record.record_bytes = static_cast<int>(sizeof(abi::OpRecord) + op.operands.size() * sizeof(abi::Operand));
    plan.bytes += op.bytes;
    plan.flops += op.flops;
    plan.floor_ms += 1e3 * floor_seconds(op, options.machine);
    plan.ops.push_back(std::move(op));
  }
  plan.fresh = std::move(draft.graph.fresh);
  plan.outputs = std::move(draft.graph.outputs);
  plan.programs = std::move(draft.graph.programs);
  plan.lists = std::move(draft.lists);
  for (std::vector<abi::WorkItem>& list : plan.lists) list.shrink_to_fit();
  plan.maps = std::move(draft.maps);
  plan.num_counters = draft.num_counters;
  plan.group = std::move(draft.graph.group);
  plan.world = draft.graph.world;
  for (size_t g = 0; g < plan.more_groups.size(); ++g)
    plan.more_groups[g].first_counter = draft.graph.more_groups[g].first_counter;
  plan.loop = loop_of(draft.graph.loop, plan);
}

/// All passes after `fuse` but the verifier.
plan::Plan run_passes(FusedGraph&& fused, const Options& options) {
  Draft draft;
  draft.graph = std::move(fused);
  plan::Plan plan;
  tile(draft, options);
  share_programs(draft.graph, options.sizes_vary);
  early_reads(draft.graph);
  pair_decode_tiles(draft.graph, options);
  order_ops(draft, options);
  Sync sync = synchronize(draft, options);
  const Timeline timeline = schedule(draft, options);
  place_memory(draft, options, timeline, sync, plan);
  plan.predicted_ms = 1e3 * timeline.end;
  finish(std::move(draft), options, plan);
  flag_words(plan);
  plan::number_forms(plan);
  return plan;
}

void verify(const plan::Plan& plan, const Options& options) {
  if (options.verify) verify_plan(plan, options.verify_races ? VerifyLevel::kFull : VerifyLevel::kStructure);
}

}  // namespace

plan::Plan plan_fused(FusedGraph&& fused, const Options& options) {
  plan::Plan plan = run_passes(std::move(fused), options);
  verify(plan, options);
  return plan;
}

plan::Plan make_plan(ir::Graph bound_graph, const Options& options, Stages* stages) {
  std::string name = bound_graph.name;
  ir::Loop loop = bound_graph.loop;
  FusedGraph fused = fuse(std::move(bound_graph), options);
  fused.loop = std::move(loop);
  if (stages) stages->fused(fused);
  plan::Plan plan = run_passes(std::move(fused), options);
  plan.name = std::move(name);
  if (stages) stages->planned(plan);
  verify(plan, options);
  return plan;
}

}  // namespace ark::planner
