// The verifier on exchanges: waits, arrivals, strides and boxes of real plans are damaged in turn. Of waits an
// enumeration of the plan says whether they matter; all else must be caught.
#include <functional>

#include "support/check.h"
#include "support/exchange_graphs.h"
#include "support/plan_brute.h"
#include "support/verify_plans.h"

using namespace ark;
using namespace ark::test;

namespace {

using Damage = std::function<void(plan::Plan&)>;

/// Tensor-parallel layers, then a scatter and a gather, with a value of the own rank beside them.
plan::Plan layers_plan(int world) {
  ExchangeBuilder b(world);
  ValueId x = b.input(DType::kF32, {96, 64}), own = x;
  for (int l = 0; l < 2; ++l) {
    ValueId w1 = b.input(DType::kF32, {64, 32}), w2 = b.input(DType::kF32, {32, 64});
    ValueId y = b.all_reduce(b.matmul(b.unary(Opcode::kRelu, b.matmul(x, w1)), w2));
    x = b.norm(b.binary(Opcode::kAdd, y, x));
  }
  ValueId z = b.all_gather(b.reduce_scatter(x));
  return plan_of(b.finish({b.binary(Opcode::kAdd, z, own)}, "layers"), true, true, 6);
}

plan::Plan rows_plan(int world) {
  ExchangeBuilder b(world);
  ValueId x = b.input(DType::kF32, {1, 64});
  for (int l = 0; l < 3; ++l) x = b.all_reduce(b.linear(x, b.input(DType::kF32, {64, 64})));
  return plan_of(b.finish({x}, "rows"), true, true, 6);
}

bool is_sender(const plan::Plan& plan, const plan::Op& op) {
  for (const abi::Operand& x : op.operands)
    if (x.slot != abi::kNoSlot && plan.buffers[x.slot].kind == plan::BufferKind::kBoxOut) return true;
  return false;
}

struct Count {
  int caught = 0, turned = 0;
  void must_fail(const plan::Plan& plan, const std::string& part, const std::string& what, const Damage& damage) {
    plan::Plan damaged = plan;
    damage(damaged);
    const std::string message = complaint(damaged, planner::VerifyLevel::kFull);
    const bool refused = message.find(part) != std::string::npos && !message.empty();
    caught += refused;
    if (!refused)
      test::fail(cat(plan.name, ", ", what, ": expected \"", part, "\", got \"", message, '"'), __FILE__, __LINE__);
  }
};

void remove_wait(plan::Plan& plan, size_t op, int w) {
  abi::OpRecord& r = plan.ops[op].record;
  std::copy(r.wait + w + 1, r.wait + r.num_waits, r.wait + w);
  --r.num_waits;
}

/// Every wait taken away: an exchange's is a race.
void damage_waits(const plan::Plan& plan) {
  const auto conflicts = BrutePlan(plan).conflicts();
  EXPECT(BrutePlan(plan).all_ordered(conflicts));
  int races = 0, of_ranks = 0;
  for (size_t op = 0; op < plan.ops.size(); ++op)
    for (int w = 0; w < plan.ops[op].record.num_waits; ++w) {
      plan::Plan damaged = plan;
      remove_wait(damaged, op, w);
      const bool race = !BrutePlan(damaged).all_ordered(conflicts), refused = !complaint(damaged).empty();
      if (race != refused) test::fail(cat("op ", op, " without wait ", w, ": race ", race), __FILE__, __LINE__);
      races += race;
      of_ranks += race && plan.ops[op].record.wait[w].rank_stride != 0;
    }
  EXPECT(races > 2);
  EXPECT(of_ranks > 2);
  std::printf("%s: %d waits are needed, %d of them for all ranks\n", plan.name.c_str(), races, of_ranks);
}

void damage_counters(const plan::Plan& plan, Count& count) {
  for (size_t op = 0; op < plan.ops.size(); ++op) {
    const abi::OpRecord& r = plan.ops[op].record;
    for (int w = 0; w < r.num_waits; ++w)
      for (int stride : {0, r.wait[w].rank_stride + 1, r.wait[w].rank_stride * 2}) {
        if (stride == r.wait[w].rank_stride) continue;
        count.must_fail(plan, "apart", cat("op ", op, ", wait ", w, ", stride ", stride),
                        [&](plan::Plan& p) { p.ops[op].record.wait[w].rank_stride = stride; });
      }
    for (int a = 0; a < r.num_arrivals; ++a) {
      const int old = r.arrive_rank_stride[a];
      if (old == 0) {
        count.must_fail(plan, "is on all ranks, but it sends nothing", cat("op ", op, ", arrival ", a),
                        [&](plan::Plan& p) { p.ops[op].record.arrive_rank_stride[a] = 1; });
        continue;
      }
      count.must_fail(plan, "is not on all ranks, but it sends", cat("op ", op, ", arrival ", a),
                      [&](plan::Plan& p) { p.ops[op].record.arrive_rank_stride[a] = 0; });
      count.must_fail(plan, "", cat("op ", op, ", arrival ", a, ", stride + 1"),
                      [&](plan::Plan& p) { ++p.ops[op].record.arrive_rank_stride[a]; });
      count.must_fail(plan, "", cat("op ", op, ", arrival ", a, ", stride - 1"),
                      [&](plan::Plan& p) { --p.ops[op].record.arrive_rank_stride[a]; });
      count.must_fail(plan, "apart", cat("op ", op, " without arrival ", a),
                      [&](plan::Plan& p) { p.ops[op].record.arrive[a].limit = 0; });
      // a wait for rank 1 alone
      count.must_fail(plan, "", cat("op ", op, ", arrival ", a, ", counters of rank 1"), [&](plan::Plan& p) {
        for (plan::Op& reader : p.ops)
          for (int w = 0; w < reader.record.num_waits; ++w)
            if (reader.record.wait[w].counter == r.arrive[a].counter)
              reader.record.wait[w].counter += static_cast<uint32_t>(old), reader.record.wait[w].rank_stride = 0;
      });
    }
  }
  count.must_fail(plan, "", "a rank more", [](plan::Plan& p) { ++p.world; });
  count.must_fail(plan, "", "a rank less", [](plan::Plan& p) { --p.world; });
  count.must_fail(plan, "of all ranks reaches counter", "counters at the end", [](plan::Plan& p) {
    for (plan::Op& op : p.ops)  // there is room for those of one rank
      for (int a = 0; a < op.record.num_arrivals; ++a)
        if (op.record.arrive_rank_stride[a] != 0)
          op.record.arrive[a].counter = static_cast<uint32_t>(p.num_counters - op.record.arrive_rank_stride[a]);
  });
}

void damage_boxes(const plan::Plan& plan, Count& count) {
  count.must_fail(plan, "the boxes end at byte", "fewer bytes", [](plan::Plan& p) { p.box_bytes -= 256; });
  for (size_t slot = 0; slot < plan.buffers.size(); ++slot) {
    const plan::Buffer& b = plan.buffers[slot];
    const bool out = b.kind == plan::BufferKind::kBoxOut;
    if (!out && b.kind != plan::BufferKind::kBox) continue;
    auto change = [&](const char* what, const std::function<void(plan::Buffer&)>& damage) {
      count.must_fail(plan, "", cat("slot ", slot, ", ", what), [&](plan::Plan& p) { damage(p.buffers[slot]); });
    };
    change("rank + 1", [](plan::Buffer& x) { ++x.index; });
    change("rank - 1", [](plan::Buffer& x) { --x.index; });
    change("moved", [](plan::Buffer& x) { x.arena_offset += 256; });
    change("smaller", [](plan::Buffer& x) { x.size_bytes -= 4; });
    if (!out) continue;
    change("no twin", [](plan::Buffer& x) { x.twin = -1; });
    change("another twin", [](plan::Buffer& x) { ++x.twin; });
    change("its own twin", [&](plan::Buffer& x) { x.twin = static_cast<int>(slot); });
  }
}

void damage_operands(const plan::Plan& plan, Count& count) {
  for (size_t op = 0; op < plan.ops.size(); ++op) {
    int sent = -1;  // the operand before that sends
    for (size_t i = 0; i < plan.ops[op].operands.size(); ++i) {
      const abi::Operand& x = plan.ops[op].operands[i];
      if (x.slot == abi::kNoSlot) continue;
      const plan::Buffer& b = plan.buffers[x.slot];
      auto change = [&](const std::string& part, const char* what, const std::function<void(abi::Operand&)>& damage) {
        count.must_fail(plan, part, cat("op ", op, ", operand ", i, ", ", what),
                        [&](plan::Plan& p) { damage(p.ops[op].operands[i]); });
      };
      if (b.kind == plan::BufferKind::kBox) {
        for (size_t other = 0; other < plan.buffers.size(); ++other)
          if (plan.buffers[other].twin == static_cast<int>(x.slot))
            change("a box of another rank", "reads elsewhere",
                   [&](abi::Operand& y) { y.slot = static_cast<uint32_t>(other); });
      }
      if (b.kind != plan::BufferKind::kBoxOut) continue;
      change("a box of its own rank", "stays here", [&](abi::Operand& y) { y.slot = static_cast<uint32_t>(b.twin); });
      change("", "another part", [](abi::Operand& y) { y.offset += 1; });
      change("", "other rows", [](abi::Operand& y) {
        for (long long& stride : y.stride) stride = stride > 1 ? stride - 1 : stride;
        y.stride[0] = y.stride[0] == 1 ? 0 : y.stride[0], y.stride[2] = y.stride[2] == 1 ? 0 : y.stride[2];
      });
      if (sent >= 0)
        change("", "one rank twice",
               [&](abi::Operand& y) { y.slot = plan.ops[op].operands[static_cast<size_t>(sent)].slot; });
      sent = static_cast<int>(i);
      const abi::OpRecord& r = plan.ops[op].record;
      if (r.kind != abi::TaskKind::kPointwise || r.params.program.num_dims != 1 || r.grid[0] < 2 || x.stride[0] != 1)
        continue;
      ++count.turned;  // all is written once, within bounds, and by other tiles
      change("another part of its box", "turned round",
             [&](abi::Operand& y) { y.offset = r.size[0] - 1, y.stride[0] = -1, y.vector = 1; });
    }
    if (!is_sender(plan, plan.ops[op])) continue;
    // the op reads what it sends
    for (size_t i = 0; i < plan.ops[op].operands.size(); ++i) {
      const abi::Operand& x = plan.ops[op].operands[i];
      if (x.slot == abi::kNoSlot || plan.buffers[x.slot].kind != plan::BufferKind::kBox) continue;
      count.must_fail(plan, "", cat("op ", op, ", operand ", i, " reads what it sends"), [&](plan::Plan& p) {
        p.ops[op].operands[i].slot = static_cast<uint32_t>(plan.buffers[p.ops[op].operands.back().slot].twin);
      });
    }
  }
}

/// Nobody waits for anybody: launches of ranks could be any number apart.
void test_unawaited() {
  ExchangeBuilder b(2);
  ValueId x = b.input(DType::kF32, {4, 16});
  b.exchange({x});
  const plan::Plan plan = plan_of(b.finish({b.unary(Opcode::kNeg, x)}, "unread"), true, true, 2);
  EXPECT_EQ(complaint(plan), std::string());
  Count count;
  count.must_fail(plan, "no op waits for an exchange", "no wait", [](plan::Plan& p) {
    for (plan::Op& op : p.ops) op.record.num_waits = 0;
  });
}

}  // namespace

int main() {
  int turned = 0;
  for (int world : {2, 3})
    for (const plan::Plan& plan : {layers_plan(world), rows_plan(world)}) {
      EXPECT_EQ(complaint(plan), std::string());
      Count count;
      damage_waits(plan);
      damage_counters(plan, count);
      damage_boxes(plan, count);
      damage_operands(plan, count);
      std::printf("%s, %d ranks: %d damages caught\n", plan.name.c_str(), world, count.caught);
      EXPECT(count.caught > 40);
      turned += count.turned;
    }
  EXPECT(turned > 0);
  test_unawaited();
  return test::result("verify_exchanges");
}
