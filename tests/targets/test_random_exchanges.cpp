// Random graphs with exchanges: planned and verified, agreed with by enumeration, run by ranks that are threads, and
// compared with a plain evaluation of the graph, bit for bit. Arguments: first seed, number of seeds.
#include <cstdlib>

#include "planner/planner.h"
#include "support/check.h"
#include "support/plan_brute.h"
#include "support/random_exchanges.h"
#include "support/rank_evaluator.h"

using namespace ark;
using namespace ark::test;

namespace {

void check_seed(uint32_t seed, int& exchanges, int& ops) {
  RandomExchanges made(seed);
  const Graph& graph = made.graph();
  planner::Options options;
  options.machine.num_workers = static_cast<int>(made.draw(1, 8));
  options.tensor_cores = made.draw(0, 3) > 0;
  options.few_rows = made.draw(0, 1) > 0;
  const plan::Plan plan = planner::make_plan(graph, options);
  for (const Node& node : graph.nodes) exchanges += node.op == OpKind::kExchange;
  ops += static_cast<int>(plan.ops.size());
  if (plan.world == 1) return;
  BrutePlan brute(plan);
  if (!brute.all_ordered(brute.conflicts())) test::fail(cat("a race in the plan of seed ", seed), __FILE__, __LINE__);
  const RankRun run{
      .launches = 4, .num_threads = 1, .seed = seed, .stragglers = seed % 3 == 0, .shared = seed % 2 == 0};
  expect_evaluated(graph, plan, run, cat("seed ", seed));
}

}  // namespace

int main(int argc, char** argv) {
  const int first = argc > 1 ? std::atoi(argv[1]) : 1, count = argc > 2 ? std::atoi(argv[2]) : 60;
  int exchanges = 0, ops = 0;
  for (int seed = first; seed < first + count; ++seed) try {
      check_seed(static_cast<uint32_t>(seed), exchanges, ops);
    } catch (const std::exception& error) {
      test::fail(cat("seed ", seed, ": ", error.what()), __FILE__, __LINE__);
    }
  std::printf("%d graphs, %d exchanges, %d ops\n", count, exchanges, ops);
  return test::result("random_exchanges");
}
