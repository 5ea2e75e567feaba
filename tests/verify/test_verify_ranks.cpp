#include <time.h>
#include "planner/verify/ranks.h"
#include "support/check.h"
#include "support/exchange_cases.h"
#include "support/plan_brute.h"
#include "support/verify_plans.h"
using namespace ark;
using namespace ark::test;
namespace {
double cpu_ms() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}
}
int main(int argc, char**) {
  for (auto make : exchange_cases::kCases)
  for (int world : {2, 3, 4, 8}) {
    planner::Options options;
    options.verify = false;
    options.machine.num_workers = 6;
    auto c = make(world);
    const plan::Plan plan = planner::make_plan(c.graph, options);
    planner::VerifyReport report, own;
    double b = cpu_ms();
    const plan::Plan merged = planner::merge_ranks(plan);
    double m = cpu_ms();
    try { planner::verify_ranks(plan, report);} catch (const std::exception& e) { std::printf("REFUSED %s\n", e.what()); }
    double e = cpu_ms();
    planner::verify_plan(plan, planner::VerifyLevel::kStructure);
    double f = cpu_ms();
    int64_t tiles = 0; for (auto& op : merged.ops) tiles += plan::num_tiles(op.record);
    std::printf("%s W %d: %zu ops -> %zu ops, %ld tiles, %d counters; merge %.2f ms, all %.2f ms, structure %.2f; pairs %ld %ld %ld\n", plan.name.c_str(), world, plan.ops.size(), merged.ops.size(), tiles, merged.num_counters, m - b, e - m, f - e, report.op_pairs, report.block_pairs, report.tile_pairs);
  }
  return test::result("verify_ranks");
}
