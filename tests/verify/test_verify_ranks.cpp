// The proof of ranks and launches together: waits, sources, strides, arrivals, sets of boxes and the order of launches
// are damaged in turn.
#include "support/exchange_graphs.h"
#include "support/rank_damages.h"
#include "support/verify_plans.h"

using namespace ark;
using namespace ark::test;

namespace {

// ---- plans ----

using Make = std::function<std::vector<ValueId>(ExchangeBuilder&)>;

plan::Plan plan_with(int world, const char* name, const Make& make) {
  ExchangeBuilder b(world);
  const std::vector<ValueId> outputs = make(b);
  return plan_of(b.finish(outputs, name), true, true, 4);
}

/// Several tiles.
ValueId input(ExchangeBuilder& b) { return b.input(DType::kF32, {48 * b.world, 32}); }

using Values = std::vector<ValueId>;
const std::vector<std::pair<const char*, Make>> kPlans = {
    {"all-reduce", [](auto& b) -> Values { return {b.all_reduce(input(b))}; }},
    {"all-gather", [](auto& b) -> Values { return {b.all_gather(input(b))}; }},
    {"reduce-scatter", [](auto& b) -> Values { return {b.reduce_scatter(input(b))}; }},
    {"all-to-all", [](auto& b) -> Values { return {b.all_to_all(input(b))}; }},
    {"layer",
     [](auto& b) -> Values {
       ValueId x = b.input(DType::kF32, {96, 16}), w = b.input(DType::kF32, {16, 80});
       return {b.norm(b.binary(Opcode::kAdd, b.all_reduce(b.matmul(x, w)), b.input(DType::kF32, {96, 80})))};
     }},
    {"in a row",  // one op reads the boxes of an exchange and writes those of the next
     [](auto& b) -> Values { return {b.all_reduce(b.unary(Opcode::kRelu, b.all_reduce(input(b))))}; }},
    {"few rows",
     [](auto& b) -> Values {
       ValueId x = b.input(DType::kF32, {1, 16});
       for (int l = 0; l < 2; ++l) x = b.all_reduce(b.linear(x, b.input(DType::kF32, {16, 16})));
       return {x};
     }},
    {"side by side",  // nobody waits for one of them because of the other
     [](auto& b) -> Values {
       ValueId x = input(b), y = b.input(DType::kF32, {8, 16});
       return {b.all_reduce(x), b.all_gather(b.unary(Opcode::kNeg, y))};
     }},
    {"in place",  // a launch reads what the one before has left
     [](auto& b) -> Values {
       ValueId x = input(b), y = b.all_reduce(x), stored = b.value(DType::kF32, b.numbers(x), x);
       b.node(OpKind::kCopyTo, {x, y}, {stored});
       return {y};
     }},
};

/// Who sends to the boxes of one exchange in the next launch has waited for the other since these boxes were read: one
/// set of them would do.
bool takes_turns(const std::string& name) { return name == "in a row" || name == "few rows"; }

// ---- damages ----

void damage_waits(const plan::Plan& plan, RankDamages& damages) {
  for (size_t op = 0; op < plan.ops.size(); ++op)
    for (int w = 0; w < plan.ops[op].record.num_waits; ++w) {
      auto change = [&](const char* what, const std::function<void(abi::Wait&)>& damage) {
        damages.damage(cat("op ", op, ", wait ", w, ", ", what),
                       [&](plan::Plan& p) { damage(p.ops[op].record.wait[w]); });
      };
      damages.remove_wait(op, w);
      change("of nothing", [](abi::Wait& wait) { wait.extent = 0; });
      change("target - 1", [](abi::Wait& wait) { --wait.target, --wait.last_target; });
      if (plan.ops[op].record.wait[w].rank_stride == 0) continue;
      for (int rank = 0; rank < plan.world; ++rank) damages.await_one(op, w, rank);
      change("stride + 1", [](abi::Wait& wait) { ++wait.rank_stride; });
      change("stride - 1", [](abi::Wait& wait) { --wait.rank_stride; });
    }
}

void damage_arrivals(const plan::Plan& plan, RankDamages& damages) {
  for (size_t op = 0; op < plan.ops.size(); ++op)
    for (int a = 0; a < plan.ops[op].record.num_arrivals; ++a) {
      auto change = [&](const char* what, const std::function<void(abi::OpRecord&)>& damage) {
        damages.damage(cat("op ", op, ", arrival ", a, ", ", what), [&](plan::Plan& p) { damage(p.ops[op].record); });
      };
      change("removed", [&](abi::OpRecord& r) { r.arrive[a].limit = 0; });
      change("of nothing", [&](abi::OpRecord& r) { r.arrive[a].extent = 0; });
      if (plan.ops[op].record.arrive_rank_stride[a] == 0) continue;
      change("on its own rank", [&](abi::OpRecord& r) { r.arrive_rank_stride[a] = 0; });
      change("stride + 1", [&](abi::OpRecord& r) { ++r.arrive_rank_stride[a]; });
      change("stride - 1", [&](abi::OpRecord& r) { --r.arrive_rank_stride[a]; });
    }
}

void test_damages() {
  for (int world : {2, 3, 4})
    for (const auto& [name, make] : kPlans) {
      const plan::Plan plan = plan_with(world, name, make);
      RankDamages damages(plan);
      damages.check_whole();
      if (world == 4 && name != kPlans[0].first) continue;
      damage_waits(plan, damages);
      damage_arrivals(plan, damages);
      const bool alternate = takes_turns(name);
      EXPECT(damages.damage_rules("one set of boxes", {.box_sets = 1}) != alternate);
      EXPECT(damages.damage_rules("launches in any order", {.in_order = false}));
      EXPECT(!damages.damage_rules("three sets of boxes", {.box_sets = 3}));
      const DamageCount& count = damages.count();
      std::printf("%s, %d ranks: %d races, %d refused, %d redundant\n", name, world, count.races, count.refused,
                  count.redundant);
      EXPECT(count.races > 8);
    }
}

/// More launches, and more ranks than a record has waits, say the same.
void test_numbers() {
  const plan::Plan plan = plan_with(2, kPlans[0].first, kPlans[0].second);
  RankDamages damages(plan);
  EXPECT(!damages.damage_rules("six launches", {.launches = 6}));
  EXPECT(damages.damage_rules("six launches, one set of boxes", {.launches = 6, .box_sets = 1}));
  const plan::Plan wide = plan_with(8, "few rows", kPlans[6].second);
  EXPECT_EQ(refusal(wide), std::string());
  for (size_t op = 0; op < wide.ops.size(); ++op)
    for (int w = 0; w < wide.ops[op].record.num_waits; ++w)
      for (int rank = 0; rank < 8; ++rank) {
        plan::Plan damaged = wide;
        abi::Wait& wait = damaged.ops[op].record.wait[w];
        wait.counter += static_cast<uint32_t>(rank * wait.rank_stride), wait.rank_stride = 0;
        EXPECT(refusal(damaged).find(": race: ") != std::string::npos);
      }
}

/// Two launches would not be enough. Of what ranks send one box is read, and who waits for its sender alone has what it
/// reads; but the sender waits for nobody, and two launches later it writes that box while others still read it.
void test_ahead() {
  ExchangeBuilder b(2);
  const ValueId box = b.exchange({input(b)})[1];
  plan::Plan plan = plan_of(b.finish({b.unary(Opcode::kNeg, box)}, "broadcast"), true, true, 4);
  RankDamages(plan).check_whole();
  abi::Wait& wait = plan.ops.back().record.wait[0];
  EXPECT(wait.rank_stride != 0);
  wait.counter += static_cast<uint32_t>(wait.rank_stride), wait.rank_stride = 0;
  EXPECT_EQ(refusal(plan, {.launches = 2}), std::string());
  const std::string message = refusal(plan);
  for (const char* part :
       {"'rank 1, launch 2, op 0 ", " of rank 0, box from rank 1, set 0); op ", "'rank 0, launch 0, op 1 "})
    if (message.find(part) == std::string::npos)
      test::fail(cat(part, " is not in \"", message, '"'), __FILE__, __LINE__);
  BruteRanks brute(plan), brief(plan, 2);
  EXPECT(!brute.all_ordered(brute.conflicts()));
  EXPECT(brief.all_ordered(brief.conflicts()));
}

/// A counter of one rank's tiles that others count on as well: what waits for it may begin too early.
void test_shared_counter() {
  ExchangeBuilder b(2);
  ValueId x = b.input(DType::kF32, {96, 16}), w = b.input(DType::kF32, {16, 80});
  b.exchange({b.unary(Opcode::kNeg, x)});  // nobody waits for it
  plan::Plan plan = plan_of(b.finish({b.norm(b.matmul(x, w)), b.all_reduce(x)}, "beside"), true, true, 4);
  RankDamages damages(plan);
  damages.check_whole();
  abi::OpRecord *sender = nullptr, *local = nullptr;
  for (plan::Op& op : plan.ops) {
    if (op.record.num_arrivals == 0 && plan.buffers[op.operands.back().slot].kind == plan::BufferKind::kBoxOut)
      sender = &op.record;
    if (op.record.num_arrivals > 0 && op.record.arrive_rank_stride[0] == 0) local = &op.record;
  }
  EXPECT(sender != nullptr && local != nullptr);
  if (sender == nullptr || local == nullptr) return;
  sender->num_arrivals = 1;
  sender->arrive[0] = {local->arrive[0].counter, 0, {0, 0, 0}, 1, 1, 1};
  sender->arrive_rank_stride[0] = plan.num_counters;
  plan.num_counters *= 2;
  BruteRanks brute(plan);
  EXPECT(!brute.all_ordered(brute.conflicts()));
  const std::string message = refusal(plan);
  EXPECT(message.find(" of rank ") != std::string::npos && message.find(" falls on counter ") != std::string::npos);
}

/// Nobody reads a box: then any launches may lie apart, as long as each rank keeps its own order.
void test_unread() {
  ExchangeBuilder b(2);
  ValueId x = b.input(DType::kF32, {4, 16});
  b.exchange({x});
  const plan::Plan plan = plan_of(b.finish({b.unary(Opcode::kNeg, x)}, "unread"), true, true, 2);
  RankDamages damages(plan);
  damages.check_whole();
  damage_waits(plan, damages);
  EXPECT(!damages.damage_rules("one set of boxes", {.box_sets = 1}));
  EXPECT(damages.damage_rules("launches in any order", {.in_order = false}));
}

void test_errors() {
  const plan::Plan plan = plan_with(2, kPlans[0].first, kPlans[0].second);
  const std::string race =
      "race: op 7 'rank 0, launch 1, op 0 exchange_0', tile 0 writes bytes 0 to 8191 of slot 3 (slot 1 of rank 1, box "
      "from rank 0, set 0); op 4 'rank 1, launch 0, op 1 pointwise_1', tile 0 reads bytes 0 to 8191 of slot 3";
  EXPECT(refusal(plan, {.box_sets = 1}).find(race) != std::string::npos);
}

/// ARK_VERIFY=full and the tests prove ranks together, once in a structure only what takes little.
void test_levels() {
  plan::Plan plan = plan_with(2, kPlans[0].first, kPlans[0].second);
  using enum planner::VerifyLevel;
  const auto pairs = [&](planner::VerifyLevel level) { return verify_plan(plan, level).op_pairs; };
  EXPECT_EQ(pairs(kRaces), pairs(kFull));
  plan.num_counters += 10'000;
  EXPECT(pairs(kRaces) < pairs(kFull));
}

}  // namespace

int main() {
  test_damages();
  test_numbers();
  test_ahead();
  test_shared_counter();
  test_unread();
  test_errors();
  test_levels();
  return test::result("verify_ranks");
}
