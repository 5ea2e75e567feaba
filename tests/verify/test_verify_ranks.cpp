// The proof of ranks and launches together (planner/verify/ranks.h): waits, strides, sources, arrivals, sets of boxes
// and the order of launches are damaged in turn. Two enumerations say what is a race: one of the merged plan, one of
// the plan itself by the meaning of its records (support/brute_ranks.h), which shares nothing with the merging.
#include <functional>

#include "planner/verify/ranks.h"
#include "support/brute_ranks.h"
#include "support/check.h"
#include "support/exchange_graphs.h"
#include "support/verify_plans.h"

using namespace ark;
using namespace ark::test;
using planner::RankRules;

namespace {

/// What the proof says of ranks alone, without that of one rank.
std::string refusal(const plan::Plan& plan, const RankRules& rules = {}) {
  try {
    planner::VerifyReport report;
    verify_ranks(plan, report, rules);
    return "";
  } catch (const InternalError& error) {
    return error.what();
  }
}

// ---- plans ----

plan::Plan small_plan(int world, const char* name, const std::function<std::vector<ValueId>(ExchangeBuilder&)>& make) {
  ExchangeBuilder b(world);
  const std::vector<ValueId> outputs = make(b);
  return plan_of(b.finish(outputs, name), true, true, 4);
}

std::vector<plan::Plan> plans(int world) {
  const int64_t rows = 48 * world;
  std::vector<plan::Plan> out;
  auto add = [&](const char* name, const std::function<std::vector<ValueId>(ExchangeBuilder&)>& make) {
    out.push_back(small_plan(world, name, make));
  };
  auto input = [&](ExchangeBuilder& b) { return b.input(DType::kF32, {rows, 32}); };
  add("all-reduce", [&](auto& b) -> std::vector<ValueId> { return {b.all_reduce(input(b))}; });
  add("all-gather", [&](auto& b) -> std::vector<ValueId> { return {b.all_gather(input(b))}; });
  add("reduce-scatter", [&](auto& b) -> std::vector<ValueId> { return {b.reduce_scatter(input(b))}; });
  add("all-to-all", [&](auto& b) -> std::vector<ValueId> { return {b.all_to_all(input(b))}; });
  add("layer", [&](auto& b) -> std::vector<ValueId> {
    ValueId x = b.input(DType::kF32, {96, 32}), w = b.input(DType::kF32, {32, 80}), r = b.input(DType::kF32, {96, 80});
    return {b.norm(b.binary(Opcode::kAdd, b.all_reduce(b.matmul(x, w)), r))};
  });
  add("in a row", [&](auto& b) -> std::vector<ValueId> {  // one op reads boxes and writes those of the next
    return {b.all_reduce(b.unary(Opcode::kRelu, b.all_reduce(input(b))))};
  });
  add("few rows", [&](auto& b) -> std::vector<ValueId> {
    ValueId x = b.input(DType::kF32, {1, 32});
    for (int l = 0; l < 2; ++l) x = b.all_reduce(b.linear(x, b.input(DType::kF32, {32, 32})));
    return {x};
  });
  add("side by side", [&](auto& b) -> std::vector<ValueId> {  // nobody waits for one because of the other
    ValueId x = input(b), y = input(b);
    return {b.all_reduce(x), b.all_gather(b.unary(Opcode::kNeg, y))};
  });
  add("unread", [&](auto& b) -> std::vector<ValueId> {
    ValueId x = input(b);
    b.exchange({x});
    return {b.unary(Opcode::kNeg, x)};
  });
  return out;
}

// ---- damages ----

struct Count {
  int races = 0, refused = 0, redundant = 0;
};

/// A race must be refused with all that there is to say; what is not refused is none.
class Damager {
 public:
  Damager(const plan::Plan& plan, Count& count)
      : plan_(plan), count_(count), conflicts_(BruteRanks(plan).conflicts()) {}

  void check_whole() {
    EXPECT_EQ(refusal(plan_), std::string());
    EXPECT(BruteRanks(plan_).all_ordered(conflicts_));
    EXPECT(!conflicts_.empty());
    const plan::Plan merged = planner::merge_ranks(plan_);
    const BrutePlan brute(merged);
    EXPECT(brute.all_ordered(brute.conflicts()));
  }

  /// `exact`: what is no race is not refused either.
  void damage(const std::string& what, bool exact, const std::function<void(plan::Plan&)>& change) {
    plan::Plan damaged = plan_;
    change(damaged);
    judge(what, exact, refusal(damaged), !BruteRanks(damaged).all_ordered(conflicts_), merged_race(damaged, {}));
  }

  void change_rules(const std::string& what, const RankRules& rules) {
    BruteRanks brute(plan_);
    const auto conflicts = brute.conflicts(rules.box_sets);
    judge(what, true, refusal(plan_, rules), !brute.all_ordered(conflicts, rules.in_order), merged_race(plan_, rules));
  }

 private:
  /// Nothing where ranks cannot be merged: that is a refusal.
  static std::optional<bool> merged_race(const plan::Plan& plan, const RankRules& rules) try {
    const plan::Plan merged = planner::merge_ranks(plan, rules);
    const BrutePlan brute(merged);
    return !brute.all_ordered(brute.conflicts());
  } catch (const InternalError&) {
    return std::nullopt;
  }

  void judge(const std::string& what, bool exact, const std::string& message, bool race, std::optional<bool> merged) {
    const bool refused = !message.empty();
    count_.races += race, count_.refused += refused, count_.redundant += !race && !refused;
    auto fail = [&](const char* why) {
      test::fail(cat(plan_.name, ", ", plan_.world, " ranks, ", what, ": ", why, ", got \"", message, '"'), __FILE__,
                 __LINE__);
    };
    if (race && !refused) fail("a race that is not refused");
    if (exact && refused && !race) fail("refused without a race");
    if (merged && *merged && !refused) fail("a race of the merged plan that is not refused");
    if (exact && merged && *merged != race) fail("the two enumerations disagree");
    if (message.find("race") == std::string::npos) return;
    for (const char* part : {"rank ", "launch ", ", op ", ", tile ", " bytes "})
      if (message.find(part) == std::string::npos || message.find(part) > message.find(';')) fail(part);
  }

  const plan::Plan& plan_;
  Count& count_;
  const BruteRanks::Pairs conflicts_;
};

void damage_waits(const plan::Plan& plan, Damager& damager) {
  for (size_t op = 0; op < plan.ops.size(); ++op)
    for (int w = 0; w < plan.ops[op].record.num_waits; ++w) {
      auto change = [&](const std::string& what, bool exact, const std::function<void(abi::Wait&)>& damage) {
        damager.damage(cat("op ", op, ", wait ", w, ", ", what), exact,
                       [&](plan::Plan& p) { damage(p.ops[op].record.wait[w]); });
      };
      damager.damage(cat("op ", op, " without wait ", w), true, [&](plan::Plan& p) {
        abi::OpRecord& r = p.ops[op].record;
        std::copy(r.wait + w + 1, r.wait + r.num_waits, r.wait + w);
        --r.num_waits;
      });
      change("of nothing", true, [](abi::Wait& wait) { wait.extent = 0; });
      change("target - 1", false, [](abi::Wait& wait) { --wait.target, --wait.last_target; });
      const int stride = plan.ops[op].record.wait[w].rank_stride;
      if (stride == 0) continue;
      for (int rank = 0; rank < plan.world; ++rank)
        change(cat("for rank ", rank, " alone"), true, [&](abi::Wait& wait) {
          wait.counter += static_cast<uint32_t>(rank * stride);
          wait.rank_stride = 0;
        });
      change("stride + 1", false, [](abi::Wait& wait) { ++wait.rank_stride; });
      change("stride - 1", false, [](abi::Wait& wait) { --wait.rank_stride; });
    }
}

void damage_arrivals(const plan::Plan& plan, Damager& damager) {
  for (size_t op = 0; op < plan.ops.size(); ++op)
    for (int a = 0; a < plan.ops[op].record.num_arrivals; ++a) {
      auto change = [&](const char* what, const std::function<void(abi::OpRecord&)>& damage) {
        damager.damage(cat("op ", op, ", arrival ", a, ", ", what), false,
                       [&](plan::Plan& p) { damage(p.ops[op].record); });
      };
      change("removed", [&](abi::OpRecord& r) { r.arrive[a].limit = 0; });
      change("of nothing", [&](abi::OpRecord& r) { r.arrive[a].extent = 0; });
      if (plan.ops[op].record.arrive_rank_stride[a] == 0) continue;
      change("on one rank", [&](abi::OpRecord& r) { r.arrive_rank_stride[a] = 0; });
      change("stride + 1", [&](abi::OpRecord& r) { ++r.arrive_rank_stride[a]; });
      change("stride - 1", [&](abi::OpRecord& r) { --r.arrive_rank_stride[a]; });
    }
}

void test_errors() {
  const plan::Plan plan = plans(2).front();
  const std::string message = refusal(plan, {.box_sets = 1});
  std::printf("%s\n", message.c_str());
}

}  // namespace

int main() {
  for (int world : {2, 3, 4})
    for (const plan::Plan& plan : plans(world)) {
      Count count;
      Damager damager(plan, count);
      damager.check_whole();
      damage_waits(plan, damager);
      damage_arrivals(plan, damager);
      damager.change_rules("one set of boxes", {.box_sets = 1});
      damager.change_rules("three sets of boxes", {.box_sets = 3});
      damager.change_rules("launches in any order", {.in_order = false});
      int64_t tiles = 0;
      for (const plan::Op& op : plan.ops) tiles += plan::num_tiles(op.record);
      std::printf("%ld tiles ", tiles);
      std::printf("%s, %d ranks: %d races, %d refused, %d redundant\n", plan.name.c_str(), world, count.races,
                  count.refused, count.redundant);
      EXPECT(count.races > 2);
    }
  test_errors();
  return test::result("verify_ranks");
}
