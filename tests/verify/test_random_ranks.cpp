// Random graphs with exchanges: all ranks and launches of their plans, as they are and damaged, proved and enumerated.
// Arguments: first seed, number of seeds.
#include <cstdlib>

#include "support/random_exchanges.h"
#include "support/rank_damages.h"
#include "support/verify_plans.h"

using namespace ark;
using namespace ark::test;

namespace {

struct Total {
  int plans = 0, ranks = 0, ops = 0, races = 0, refused = 0, redundant = 0;
};

void check_seed(uint32_t seed, Total& total) {
  RandomExchanges made(seed);
  const plan::Plan plan =
      plan_of(made.graph(), made.draw(0, 1) > 0, made.draw(0, 3) > 0, static_cast<int>(made.draw(1, 4)));
  if (plan.world == 1) return;
  RankDamages damages(plan);
  damages.check_whole();
  std::vector<std::pair<size_t, int>> waits, of_ranks;
  for (size_t op = 0; op < plan.ops.size(); ++op)
    for (int w = 0; w < plan.ops[op].record.num_waits; ++w) {
      waits.emplace_back(op, w);
      if (plan.ops[op].record.wait[w].rank_stride != 0) of_ranks.push_back(waits.back());
    }
  auto pick = [&](const auto& from) { return from[static_cast<size_t>(made.draw(0, std::ssize(from) - 1))]; };
  const auto [op, wait] = pick(waits);
  damages.remove_wait(op, wait);
  const auto [reader, of_all] = pick(of_ranks);
  damages.await_one(reader, of_all, static_cast<int>(made.draw(0, plan.world - 1)));
  damages.damage_rules("one set of boxes", {.box_sets = 1});
  const DamageCount& count = damages.count();
  ++total.plans, total.ranks += plan.world, total.ops += static_cast<int>(plan.ops.size());
  total.races += count.races, total.refused += count.refused, total.redundant += count.redundant;
}

}  // namespace

int main(int argc, char** argv) {
  const int first = argc > 1 ? std::atoi(argv[1]) : 1, count = argc > 2 ? std::atoi(argv[2]) : 40;
  Total total;
  for (int seed = first; seed < first + count; ++seed) try {
      const int before = test::num_failures;
      check_seed(static_cast<uint32_t>(seed), total);
      if (test::num_failures > before) std::printf("seed %d\n", seed);
    } catch (const std::exception& error) {
      test::fail(cat("seed ", seed, ": ", error.what()), __FILE__, __LINE__);
    }
  std::printf("%d plans, %d ranks, %d ops; %d races, %d refused, %d redundant\n", total.plans, total.ranks, total.ops,
              total.races, total.refused, total.redundant);
  if (count >= 40) {
    EXPECT(total.races > count);
    EXPECT(total.redundant > 0);
  }
  return test::result("random_ranks");
}
