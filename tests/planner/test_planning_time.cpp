// How long planning takes for whole models, bounded five times above what was measured, in CPU time; and the rule by
// which a plan need not be verified in full again (planner/verify/structure_key.h).
#include <time.h>

#include <algorithm>
#include <cstdio>

#include "planner/verify/ranks.h"
#include "planner/verify/structure_key.h"
#include "planner/verify/verify_plan.h"
#include "support/exchange_cases.h"
#include "support/sample_graphs.h"
#include "targets/cuda/plan_image.h"

using namespace ark;
using namespace ark::test;

namespace {

double cpu_ms() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

/// The shortest of three: planning without the proof of races, the full proof, and laying the plan out for the GPU.
void check_time(const char* what, const Builder& builder, double most_plan_ms, double most_proof_ms,
                double most_layout_ms) {
  double plan_ms = 1e9, proof_ms = 1e9, layout_ms = 1e9;
  for (int round = 0; round < 3; ++round) {
    Builder copy = builder;
    double begin = cpu_ms();
    const plan::Plan plan = planner::plan_fused(std::move(copy.graph), {.verify_races = false});
    plan_ms = std::min(plan_ms, cpu_ms() - begin);
    begin = cpu_ms();
    const planner::VerifyReport report = planner::verify_plan(plan, planner::VerifyLevel::kFull);
    proof_ms = std::min(proof_ms, cpu_ms() - begin);
    begin = cpu_ms();
    expect(cuda::lay_out(plan).num_items > 0, cat(what, ": has items"));
    layout_ms = std::min(layout_ms, cpu_ms() - begin);
    // what the proof looks at, on any machine: no single tiles, blocks of tiles of few pairs of ops
    expect(report.tile_pairs == 0, cat(what, ": ", report.tile_pairs, " pairs of tiles were compared"));
    const auto ops = static_cast<int64_t>(plan.ops.size());
    expect(report.op_pairs < 20 * ops, cat(what, ": ", report.op_pairs, " pairs of uses of ", ops, " ops"));
    expect(report.block_pairs < 200 * ops, cat(what, ": ", report.block_pairs, " pairs of blocks of ", ops, " ops"));
    if (round == 0)
      std::printf("%s: %zu ops, %lld pairs of uses, %lld of blocks\n", what, plan.ops.size(),
                  static_cast<long long>(report.op_pairs), static_cast<long long>(report.block_pairs));
  }
  std::printf("%s: planned in %.1f ms, verified in %.1f ms, laid out in %.2f ms\n", what, plan_ms, proof_ms, layout_ms);
  expect(plan_ms < most_plan_ms, cat(what, ": planned in ", plan_ms, " ms, expected at most ", most_plan_ms));
  expect(proof_ms < most_proof_ms, cat(what, ": verified in ", proof_ms, " ms, expected at most ", most_proof_ms));
  expect(layout_ms < most_layout_ms, cat(what, ": laid out in ", layout_ms, " ms, expected at most ", most_layout_ms));
}

/// 16 tensor-parallel layers: all ranks and launches together, the shortest of three.
void check_ranks_time(int world, double most_ms) {
  const plan::Plan plan = planner::make_plan(exchange_cases::layers(world).graph, {.verify_races = false});
  double ms = 1e9;
  planner::VerifyReport report;
  for (int round = 0; round < 3; ++round) {
    report = {};
    const double begin = cpu_ms();
    verify_ranks(plan, report);
    ms = std::min(ms, cpu_ms() - begin);
  }
  const auto ops = static_cast<int64_t>(planner::merge_ranks(plan).ops.size());
  std::printf("16 layers of %d ranks: %zu ops, merged %lld, verified in %.2f ms\n", world, plan.ops.size(),
              static_cast<long long>(ops), ms);
  expect(report.tile_pairs == 0 && report.block_pairs == 0, cat(world, " ranks: blocks of tiles were compared"));
  expect(report.op_pairs < 10 * ops, cat(world, " ranks: ", report.op_pairs, " pairs of uses of ", ops, " ops"));
  expect(ms < most_ms, cat(world, " ranks: verified in ", ms, " ms, expected at most ", most_ms));
}

plan::Plan encoder_plan(int64_t seq, int64_t layers = 2) {
  return planner::plan_fused(std::move(encoder({.seq = seq, .layers = layers}).graph), {.verify_races = false});
}

void sizes_share_a_structure() {
  const uint64_t key = planner::structure_key(encoder_plan(384));
  expect(key == planner::structure_key(encoder_plan(384)), "structure: the same plan has the same key");
  expect(key == planner::structure_key(encoder_plan(512)), "structure: 512 positions as 384");
  // 448 positions leave a last block of rows that is not whole, 768 change the width of the best tiles
  const uint64_t uneven = planner::structure_key(encoder_plan(448));
  expect(uneven != key, "structure: blocks that do not divide their axis are another structure");
  expect(key != planner::structure_key(encoder_plan(384, 3)), "structure: three layers differ from two");
}

/// What the full proof would find in a damaged plan, the key must not call proved.
void other_plans_have_other_keys() {
  const plan::Plan plan = encoder_plan(384);
  const uint64_t key = planner::structure_key(plan);
  int changed = 0;
  for (size_t op = 0; op < plan.ops.size(); ++op) {
    for (int w = 0; w < plan.ops[op].record.num_waits; ++w, ++changed) {
      plan::Plan fewer = plan;
      abi::OpRecord& r = fewer.ops[op].record;
      std::copy(r.wait + w + 1, r.wait + r.num_waits, r.wait + w);
      --r.num_waits;
      expect(planner::structure_key(fewer) != key, cat("structure: op ", op, " without wait ", w));
      plan::Plan elsewhere = plan;
      elsewhere.ops[op].record.wait[w].counter = plan.ops[0].record.arrive[0].counter;
      if (plan.ops[op].record.wait[w].counter != plan.ops[0].record.arrive[0].counter)
        expect(planner::structure_key(elsewhere) != key, cat("structure: op ", op, ", wait ", w, " for another op"));
    }
  }
  expect(changed > 10, "structure: the encoder has waits");
  std::vector<size_t> arena;
  for (size_t slot = 0; slot < plan.buffers.size(); ++slot)
    if (plan.buffers[slot].kind == plan::BufferKind::kArena) arena.push_back(slot);
  plan::Plan moved = plan;
  moved.buffers[arena[1]].arena_offset = moved.buffers[arena[0]].arena_offset;
  expect(arena.size() > 2 && planner::structure_key(moved) != key, "structure: a moved buffer");
}

}  // namespace

int main() {
  // Measured: 2.7, 2.8 and 0.15 ms; 6.2, 3.3 and 1.5 ms.
  check_time("decode, 16 layers", decoder({}), 15, 15, 0.8);
  check_time("encoder, 24 layers",
             encoder({.batch = 10, .seq = 384, .width = 1024, .heads = 16, .hidden = 4096, .layers = 24}), 40, 20, 7.5);
  // Measured: 0.8, 1.8 and 4.5 to 5.7 ms; on another machine 1.5, 4.4 and 20 to 30.
  check_ranks_time(2, 6);
  check_ranks_time(4, 18);
  check_ranks_time(8, 80);
  sizes_share_a_structure();
  other_plans_have_other_keys();
  return finish("planning time");
}
