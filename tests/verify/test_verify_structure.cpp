// The verifier on structure: every arrival, target, lifetime and list item of real plans is damaged in turn; no run
// could survive any of it, so all must be caught.
#include <algorithm>
#include <set>

#include "support/check.h"
#include "support/verify_plans.h"

using namespace ark;
using namespace ark::test;

namespace {

/// Counts that do not come out: a wait that is never met, or met too early in the next launch.
void damage_counts(const plan::Plan& plan) {
  int caught = 0, unheard = 0;
  auto must_fail = [&](const plan::Plan& damaged, const std::string& damage) {
    bool refused = !complaint(damaged, planner::VerifyLevel::kStructure).empty();
    caught += refused;
    if (!refused) test::fail("not caught: " + damage, __FILE__, __LINE__);
  };
  std::set<int64_t> heard;  // counters that someone waits for
  for (const plan::Op& op : plan.ops)
    for (int w = 0; w < op.record.num_waits; ++w)
      for (int64_t row = 0; row < op.record.wait[w].limit; row += op.record.wait[w].div)
        heard.insert(op.record.wait[w].counter + row / op.record.wait[w].div);
  for (size_t op = 0; op < plan.ops.size(); ++op) {
    for (int a = 0; a < plan.ops[op].record.num_arrivals; ++a) {
      plan::Plan damaged = plan;
      abi::OpRecord& r = damaged.ops[op].record;
      if (!heard.contains(r.arrive[a].counter)) {
        ++unheard;
        continue;
      }
      std::copy(r.arrive + a + 1, r.arrive + r.num_arrivals, r.arrive + a);
      --r.num_arrivals;
      must_fail(damaged, cat("op ", op, " without arrival ", a));
    }
    for (int w = 0; w < plan.ops[op].record.num_waits; ++w)
      for (int by : {-1, 1}) {
        plan::Plan damaged = plan;
        damaged.ops[op].record.wait[w].target += static_cast<uint32_t>(by);
        damaged.ops[op].record.wait[w].last_target += static_cast<uint32_t>(by);
        must_fail(damaged, cat("op ", op, ", target ", w, by > 0 ? " + 1" : " - 1"));
      }
  }
  std::printf("%s: arrivals and targets: %d caught, %d arrivals that nobody waits for\n", plan.name.c_str(), caught,
              unheard);
}

/// Every lifetime cut by an op on either side.
void damage_lifetimes(const plan::Plan& plan) {
  int caught = 0;
  for (size_t i = 0; i < plan.buffers.size(); ++i) {
    if (plan.buffers[i].kind != plan::BufferKind::kArena || plan.buffers[i].size_bytes == 0) continue;
    for (const bool end : {false, true}) {
      plan::Plan damaged = plan;
      if (end)
        --damaged.buffers[i].last_op;
      else
        ++damaged.buffers[i].first_op;
      const std::string message = complaint(damaged, planner::VerifyLevel::kStructure);
      caught += !message.empty();
      if (message.find("which lives from op") == std::string::npos)
        test::fail(cat("slot ", i, end ? ", end" : ", begin", " of its life: got \"", message, '"'), __FILE__,
                   __LINE__);
    }
  }
  std::printf("%s: lifetimes: %d caught\n", plan.name.c_str(), caught);
}

/// Lists that lose, repeat or misplace tiles.
void damage_lists(const plan::Plan& plan) {
  int caught = 0;
  auto must_fail = [&](const plan::Plan& damaged, const std::string& part) {
    std::string message = complaint(damaged, planner::VerifyLevel::kStructure);
    caught += !message.empty();
    if (message.find(part) == std::string::npos)
      test::fail(cat("expected \"", part, "\", got \"", message, '"'), __FILE__, __LINE__);
  };
  for (size_t w = 0; w < plan.lists.size(); ++w)
    for (size_t i = 0; i < plan.lists[w].size(); ++i) {
      plan::Plan lost = plan, twice = plan, beyond = plan;
      lost.lists[w].erase(lost.lists[w].begin() + static_cast<std::ptrdiff_t>(i));
      must_fail(lost, "is in no list");
      twice.lists[w].push_back(twice.lists[w][i]);
      must_fail(twice, "in the lists twice");
      beyond.lists[w][i].first += 1'000'000;
      must_fail(beyond, "which has");
    }
  plan::Plan reversed = plan;
  bool several = false;  // a worker with items of several ops
  for (auto& list : reversed.lists) {
    several |= !list.empty() && list.front().op != list.back().op;
    std::reverse(list.begin(), list.end());
  }
  if (several) must_fail(reversed, "deadlock");
  std::printf("%s: lists: %d caught\n", plan.name.c_str(), caught);
}

}  // namespace

int main() {
  for (const plan::Plan& plan : sample_plans()) {
    damage_counts(plan);
    damage_lifetimes(plan);
    damage_lists(plan);
  }
  return test::result("verify_structure");
}
