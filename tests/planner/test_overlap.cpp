// x
#include "planner/planner.h"
#include "planner/cost.h"
#include "planner/order/order_ops.h"
#include "planner/order/overlap.h"
#include "planner/order/schedule.h"
#include "planner/order/synchronize.h"
#include "planner/tile/tile.h"
#include "support/check.h"
#include "support/exchange_graphs.h"
using namespace ark;
using namespace ark::test;

void show(const Graph& g) {
  planner::Options options;
  planner::Draft draft;
  draft.graph = planner::fuse(g, true, 132);
  planner::tile(draft, options);
  planner::order_ops(draft, options);
  planner::synchronize(draft, options);
  auto shares = planner::share_workers(draft, options.machine);
  auto t = planner::schedule(draft, options);
  for (int i = 0; i < (int)draft.graph.ops.size(); ++i) std::printf("  %s %.1f-%.1f tile %g n %ld spare %d until %d most %d link %g\n", draft.graph.ops[i].op.name.c_str(), t.start[i]*1e6, t.finish[i]*1e6, 1e6*planner::tile_seconds(draft.graph, draft.graph.ops[i], options.machine), (long)planner::num_tiles(draft.graph.ops[i].op.record), shares[i].spare, shares[i].until, shares[i].most, 1e6*planner::link_seconds(draft.graph, draft.graph.ops[i], options.machine));
  for (int m : shares[0].m_order) std::printf("%d ", m);
  std::printf("\n");
}
int main() {
  for (int world : {2, 4, 6, 8}) {
  ExchangeBuilder b(world);
  ValueId x = b.input(DType::kBF16, {6144, 8192/world/64*64}), w = b.input(DType::kBF16, {8192, 8192/world/64*64});
  show(b.finish({b.reduce_scatter(b.linear(x, w))}, "rs"));
  }
  {
  ExchangeBuilder b(4);
  ValueId x = b.input(DType::kBF16, {2048, 8192}), w = b.input(DType::kBF16, {2048, 8192});
  show(b.finish({b.linear(b.all_gather(x), w)}, "ag"));
  }
  {
  ExchangeBuilder b(4);
  ValueId x = b.input(DType::kBF16, {1024, 4096}), w = b.input(DType::kBF16, {3584, 4096}), w2 = b.input(DType::kBF16, {4096, 3584});
  ValueId y = b.linear(b.unary(Opcode::kRelu, b.linear(b.all_gather(b.norm(x)), w)), w2);
  ValueId dw = b.matmul(b.transposed(y), b.input(DType::kBF16, {4096, 4096}));
  show(b.finish({b.binary(Opcode::kAdd, x, b.reduce_scatter(y)), dw}, "mlp"));
  }
}
