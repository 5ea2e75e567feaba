// Plans with exchanges of several groups, as they are planned: products of tiles and of few rows.
#include "base/check.h"
#include "planner/planner.h"
#include "plans.h"
#include "support/exchange_graphs.h"

namespace ark::cuda_compile {
namespace {

/// Tensor-parallel layers whose sums are gathered, and multiplied, over data-parallel ranks.
NamedPlan mesh_plan(const char* name, int64_t rows) {
  test::ExchangeBuilder b(4);
  const int64_t width = 2048;
  ir::ValueId x = b.input(DType::kBF16, {rows, width});
  for (int layer = 0; layer < 2; ++layer) {
    b.world = 4, b.group = "tensor";
    const ir::ValueId y = b.all_reduce(b.linear(x, b.input(DType::kBF16, {width, width})));
    b.world = 2, b.group = "data";
    x = b.linear(b.all_gather(b.unary(Opcode::kRelu, y)), b.input(DType::kBF16, {width, width}));
  }
  NamedPlan named{name, planner::make_plan(b.finish({x}, name), {})};
  check(num_groups(named.plan) == 2, name, ": ", num_groups(named.plan), " groups");
  return named;
}

}  // namespace

std::vector<NamedPlan> group_plans() { return {mesh_plan("mesh_rows", 1), mesh_plan("mesh_tiles", 512)}; }

}  // namespace ark::cuda_compile
