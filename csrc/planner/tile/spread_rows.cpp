#include "planner/tile/spread_rows.h"

#include <algorithm>

#include "plan/kinds.h"
#include "planner/tile/tile_sizes.h"

namespace ark::planner {
namespace {

// Beside products of few rows, whose kernel serves no others, rows from here on have a worker each, where there are no
// more of them and that costs least (shared_rows): a norm of 64 rows of 2048 took 6.5 us by the warps of eight workers,
// and 2.2 by 64 workers that add four parts besides (one H200).
constexpr int64_t kSpreadRow = 1024;

bool is_product_of_few_rows(const FusedOp& op) {
  return has_small_tiles(op) || plan::kind_of(op.op.record).family == plan::Family::kRows;
}

}  // namespace

void spread_rows(FusedGraph& graph) {
  if (std::ranges::none_of(graph.ops, is_product_of_few_rows)) return;
  for (FusedOp& op : graph.ops) {
    if (op.op.record.kind != abi::TaskKind::kRow) continue;
    const abi::ProgramParams& params = op.op.record.params.program;
    int64_t row = 1;
    for (int d = params.num_dims - params.reduce_dims; d < params.num_dims; ++d) row *= op.op.record.size[d];
    op.spread_rows = op.spread_rows || row >= kSpreadRow;
  }
}

}  // namespace ark::planner
