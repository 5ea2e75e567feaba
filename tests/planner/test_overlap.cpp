// x
#include "planner/planner.h"
#include "support/check.h"
#include "support/exchange_graphs.h"
using namespace ark;
using namespace ark::test;
int main() {
  for (int world : {2, 4, 8}) {
  ExchangeBuilder b(world);
  ValueId x = b.input(DType::kBF16, {8192, 2048}), w = b.input(DType::kBF16, {8192, 2048});
  planner::Options options;
  plan::Plan plan = planner::make_plan(b.finish({b.reduce_scatter(b.linear(x, w))}, "rs"), options);
  std::printf("predicted %g\n", plan.predicted_ms);
  for (int w = 0; w < 132; ++w) {
    int n[3] = {};
    for (auto& i : plan.lists[w]) n[i.op] += i.count;
    std::printf("%d/%d/%d ", n[0], n[1], n[2]);
  }
  std::printf("\n");
  }
}
