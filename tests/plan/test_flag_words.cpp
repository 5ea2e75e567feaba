// Flagged words: which vectors of a decode step travel in them, and that the waits that are left order everything else.
#include "plan/flag_words.h"
#include "planner/planner.h"
#include "support/check.h"
#include "support/model_graph.h"
#include "support/plan_brute.h"

using namespace ark;
using namespace ark::test;

namespace {

plan::Plan decode_plan() {
  auto [m, x] = decode_step();
  planner::Options options;
  m.graph.outputs = {x};
  return planner::make_plan(m.graph, options);
}

/// The plan without its flagged accesses, waiting as the loop kernel does.
plan::Plan unflagged_part(plan::Plan plan, const planner::FlagWords& flags) {
  for (size_t i = 0; i < plan.ops.size(); ++i) {
    plan::Op& op = plan.ops[i];
    for (size_t k = 0; k < op.operands.size(); ++k)
      if ((flags.ops[i].operands >> k & 1) != 0) op.operands[k].slot = abi::kNoSlot;
    op.record.num_waits = static_cast<int>(flags.ops[i].waits.size());
    std::copy(flags.ops[i].waits.begin(), flags.ops[i].waits.end(), op.record.wait);
    op.record.num_arrivals = static_cast<int>(flags.ops[i].arrivals.size());
    std::copy(flags.ops[i].arrivals.begin(), flags.ops[i].arrivals.end(), op.record.arrive);
  }
  return plan;
}

void test_decode() {
  const plan::Plan plan = decode_plan();
  const planner::FlagWords flags = planner::flag_words(plan);
  EXPECT(flags.num_words > 0);
  int waits = 0, left = 0, arrivals = 0, arrivals_left = 0;
  for (size_t i = 0; i < plan.ops.size(); ++i) {
    waits += plan.ops[i].record.num_waits;
    left += static_cast<int>(flags.ops[i].waits.size());
    arrivals += plan.ops[i].record.num_arrivals;
    arrivals_left += static_cast<int>(flags.ops[i].arrivals.size());
  }
  std::printf("%zu ops: %d of %d waits and %d of %d arrivals are left\n", plan.ops.size(), left, waits, arrivals_left,
              arrivals);
  EXPECT(arrivals_left < arrivals);
  const plan::Plan rest = unflagged_part(plan, flags);
  BrutePlan brute(rest);
  EXPECT(brute.all_ordered(brute.conflicts()));
  EXPECT_EQ(planner::counter_lines(plan), plan.num_counters + flags.num_words / abi::kCounterStride);
}

/// Every buffer of words has one writer and lies alone.
void test_words() {
  const plan::Plan plan = decode_plan();
  const planner::FlagWords flags = planner::flag_words(plan);
  std::vector<int> users(static_cast<size_t>(flags.num_words), 0);
  for (size_t b = 0; b < plan.buffers.size(); ++b) {
    if (flags.first_word[b] < 0) continue;
    for (int64_t w = 0; w < plan.buffers[b].size_bytes / 2; ++w)
      ++users.at(static_cast<size_t>(flags.first_word[b] + w));
  }
  for (int n : users) EXPECT(n <= 1);
}

/// Without a wait that is left, something is not ordered any more: the brute check of test_decode can fail.
void test_left_waits_matter() {
  const plan::Plan plan = decode_plan();
  const planner::FlagWords flags = planner::flag_words(plan);
  int needed = 0;
  const plan::Plan undamaged = unflagged_part(plan, flags);
  const auto conflicts = BrutePlan(undamaged).conflicts();  // of accesses, whatever the waits
  for (size_t i = 0; i < plan.ops.size(); ++i)
    for (size_t w = 0; w < flags.ops[i].waits.size(); ++w) {
      planner::FlagWords damaged = flags;
      damaged.ops[i].waits.erase(damaged.ops[i].waits.begin() + static_cast<std::ptrdiff_t>(w));
      const plan::Plan rest = unflagged_part(plan, damaged);
      needed += !BrutePlan(rest).all_ordered(conflicts);
    }
  EXPECT(needed > 3);
}

}  // namespace

int main() {
  test_decode();
  test_words();
  test_left_waits_matter();
  return test::result("flag_words");
}
