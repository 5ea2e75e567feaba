// Plans with exchanges of several groups, which are the dimensions of a mesh of ranks: an enumeration of all its ranks
// says which waits matter; boxes, counters and groups are damaged in turn.
#include <functional>

#include "planner/verify/box_reuse.h"
#include "planner/verify/rank_interface.h"
#include "support/exchange_graphs.h"
#include "support/rank_damages.h"
#include "support/verify_plans.h"

using namespace ark;
using namespace ark::test;

namespace {

using Damage = std::function<void(plan::Plan&)>;

/// Layers that are summed over both groups in turn, with a gather in the end.
plan::Plan mesh_plan(int tensor, int data, int layers, int64_t rows, int workers) {
  ExchangeBuilder b(tensor);
  ValueId x = b.input(DType::kF32, {rows, 16});
  for (int l = 0; l < layers; ++l) {
    b.world = tensor, b.group = "tensor";
    ValueId y = b.all_reduce(b.matmul(b.unary(Opcode::kRelu, x), b.input(DType::kF32, {16, 16})));
    b.world = data, b.group = "data";
    x = b.binary(Opcode::kAdd, x, b.all_reduce(y));
  }
  ValueId whole = b.all_gather(x);
  b.world = tensor, b.group = "tensor";
  return plan_of(b.finish({whole, b.all_gather(x)}, "mesh"), true, true, workers);
}

int32_t group_sent_to(const plan::Plan& plan, const plan::Op& op) {
  for (const abi::Operand& x : op.operands)
    if (x.slot != abi::kNoSlot && plan.buffers[x.slot].kind == plan::BufferKind::kBoxOut)
      return plan.buffers[x.slot].group;
  return -1;
}

void test_plan(const plan::Plan& plan) {
  EXPECT_EQ(plan.group, std::string("tensor"));
  EXPECT_EQ(plan.more_groups.size(), size_t{1});
  EXPECT_EQ(plan.more_groups[0].name, std::string("data"));
  EXPECT(plan.box_bytes > 0 && plan.more_groups[0].box_bytes > 0);
  EXPECT_EQ(complaint(plan), std::string());
  EXPECT_EQ(plan::to_string(plan::from_json(plan::to_json(plan))), plan::to_string(plan));
  for (int32_t group : {0, 1}) EXPECT(planner::rank_interface(plan, group).size() > 2);
  for (const planner::BoxReuse& reuse : planner::box_reuses(plan)) {
    auto group = [&](int32_t op) { return group_sent_to(plan, plan.ops[static_cast<size_t>(op)]); };
    EXPECT(group(reuse.earlier) == group(reuse.later) && group(reuse.later) == group(reuse.witness));
  }
}

/// What a group of ranks compares does not say how many counters and boxes another group has.
void test_interface() {
  auto plan_with = [](int exchanges_before) {
    ExchangeBuilder b(2);
    ValueId x = b.input(DType::kF32, {4, 4}), y = b.input(DType::kF32, {4, 4});
    for (int i = 0; i < exchanges_before; ++i) x = b.all_reduce(b.unary(Opcode::kRelu, x));
    b.group = "data";
    return plan_of(b.finish({x, b.all_reduce(b.unary(Opcode::kRelu, y))}, "before"), true, true, 4);
  };
  const plan::Plan one = plan_with(1), three = plan_with(3);
  const auto of_one = planner::rank_interface(one, 1), of_three = planner::rank_interface(three, 1);
  EXPECT_EQ(of_one.size(), of_three.size());
  for (size_t i = 0; i < of_one.size(); ++i) EXPECT_EQ(of_one[i].value, of_three[i].value);
  EXPECT(planner::rank_interface(one, 0).size() != planner::rank_interface(three, 0).size());
}

/// Every wait taken away, and every wait for all ranks made one for a single rank.
void damage_waits(const plan::Plan& plan) {
  BruteRanks brute(plan);
  const BruteRanks::Pairs conflicts = brute.conflicts();
  EXPECT(!conflicts.empty() && brute.all_ordered(conflicts));
  int races = 0, of_ranks = 0;
  auto judge = [&](const std::string& what, const Damage& damage) {
    plan::Plan damaged = plan;
    damage(damaged);
    const bool race = !BruteRanks(damaged).all_ordered(conflicts), refused = !refusal(damaged).empty();
    if (race && !refused) test::fail(cat(what, ": a race that is not refused"), __FILE__, __LINE__);
    if (race && complaint(damaged).empty()) test::fail(cat(what, ": not refused"), __FILE__, __LINE__);
    races += race;
    return race;
  };
  for (size_t op = 0; op < plan.ops.size(); ++op)
    for (int w = 0; w < plan.ops[op].record.num_waits; ++w) {
      const bool all = plan.ops[op].record.wait[w].rank_stride != 0;
      of_ranks += judge(cat("op ", op, " without wait ", w),
                        [&](plan::Plan& p) {
                          abi::OpRecord& r = p.ops[op].record;
                          std::copy(r.wait + w + 1, r.wait + r.num_waits, r.wait + w);
                          --r.num_waits;
                        }) &&
                  all;
      if (all)
        judge(cat("op ", op, ", wait ", w, " for rank 0"),
              [&](plan::Plan& p) { p.ops[op].record.wait[w].rank_stride = 0; });
    }
  std::printf("%s: %d damages of waits are races, %d of them for ranks\n", plan.name.c_str(), races, of_ranks);
  EXPECT(races > 3 && of_ranks > 3);
}

void must_fail(const plan::Plan& plan, const std::string& what, const Damage& damage) {
  plan::Plan damaged = plan;
  damage(damaged);
  if (complaint(damaged).empty()) test::fail(cat(what, ": not refused"), __FILE__, __LINE__);
}

void damage_groups(const plan::Plan& plan) {
  must_fail(plan, "no second group", [](plan::Plan& p) { p.more_groups.clear(); });
  must_fail(plan, "a rank more", [](plan::Plan& p) { ++p.more_groups[0].world; });
  must_fail(plan, "a rank less", [](plan::Plan& p) { --p.more_groups[0].world; });
  must_fail(plan, "fewer bytes", [](plan::Plan& p) { p.more_groups[0].box_bytes -= 256; });
  for (int by : {-1, 1, 2, -2})
    must_fail(plan, cat("counters from ", by, " on"), [&](plan::Plan& p) { p.more_groups[0].first_counter += by; });
  must_fail(plan, "no counters", [](plan::Plan& p) { p.more_groups[0].first_counter = p.num_counters; });
  for (size_t slot = 0; slot < plan.buffers.size(); ++slot) {
    if (!plan::is_any_box(plan.buffers[slot].kind)) continue;
    for (int32_t group : {1 - plan.buffers[slot].group, 2, -1})
      must_fail(plan, cat("slot ", slot, " of group ", group), [&](plan::Plan& p) { p.buffers[slot].group = group; });
  }
  for (size_t op = 0; op < plan.ops.size(); ++op) {
    const abi::OpRecord& r = plan.ops[op].record;
    for (int a = 0; a < r.num_arrivals; ++a)
      must_fail(plan, cat("op ", op, ", arrival ", a, ", another stride"),
                [&](plan::Plan& p) { ++p.ops[op].record.arrive_rank_stride[a]; });
  }
  // all of a group's waits: its ranks could be two launches apart
  for (int32_t group : {0, 1})
    must_fail(plan, cat("nobody waits for group ", group), [&](plan::Plan& p) {
      for (plan::Op& op : p.ops)
        for (int w = op.record.num_waits - 1; w >= 0; --w) {
          abi::Wait* wait = op.record.wait + w;
          if (wait->rank_stride == 0 || group_of_counter(p, wait->counter) != group) continue;
          std::copy(wait + 1, op.record.wait + op.record.num_waits--, wait);
        }
    });
}

/// One op sends in one group: a value that goes to both has two ops.
void test_two_of_a_value() {
  ExchangeBuilder b(2);
  ValueId x = b.unary(Opcode::kRelu, b.input(DType::kF32, {8, 16}));
  ValueId first = b.all_reduce(x);
  b.group = "data";
  const plan::Plan plan = plan_of(b.finish({first, b.all_reduce(x)}, "two"), true, true, 4);
  EXPECT_EQ(complaint(plan), std::string());
  int senders = 0;
  for (const plan::Op& op : plan.ops) senders += group_sent_to(plan, op) >= 0;
  EXPECT_EQ(senders, 2);
}

/// Nobody reads what a group sends: an empty op waits for it.
void test_unread() {
  ExchangeBuilder b(2);
  ValueId x = b.unary(Opcode::kRelu, b.input(DType::kF32, {8, 16}));
  ValueId first = b.all_reduce(x);
  b.group = "data";
  b.exchange({first});
  const plan::Plan plan = plan_of(b.finish({first}, "unread"), true, true, 4);
  EXPECT_EQ(complaint(plan), std::string());
  bool awaited = false;
  for (const plan::Op& op : plan.ops)
    for (int w = 0; w < op.record.num_waits; ++w)
      awaited |= op.record.wait[w].rank_stride != 0 && group_of_counter(plan, op.record.wait[w].counter) == 1;
  EXPECT(awaited);
}

}  // namespace

int main() {
  for (const plan::Plan& plan :
       {mesh_plan(2, 2, 1, 8, 2), mesh_plan(2, 3, 1, 8, 2), mesh_plan(3, 2, 4, 1, 2), mesh_plan(2, 2, 6, 64, 6)}) {
    test_plan(plan);
    damage_groups(plan);
    if (plan.ops.size() < 12) damage_waits(plan);
  }
  test_interface();
  test_two_of_a_value();
  test_unread();
  return test::result("verify_groups");
}
