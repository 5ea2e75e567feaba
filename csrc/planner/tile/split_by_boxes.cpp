#include "planner/tile/split_by_boxes.h"

#include "planner/tile/own_rows.h"
#include "planner/tile/row_batches.h"

namespace ark::planner {
namespace {

using X = abi::MatmulOperand;

/// Rows of operand a that one rank has sent; 0: it is something else.
int64_t rows_of_box(const FusedGraph& graph, const FusedOp& op) {
  const abi::OpRecord& record = op.op.record;
  if (plan::kind_of(record).order != plan::Order::kGroupsOfM || graph.world == 1 || has_several_groups(graph)) return 0;
  const abi::MatmulTileParams& p = record.params.matmul;
  const abi::Operand& a = op.op.operands[X::kA];
  const Storage& storage = graph.storages[a.slot];
  if (!storage.joined_boxes() || p.batch != 1 || a.offset != 0 || p.m % graph.world != 0) return 0;
  const int64_t rows = p.m / graph.world;
  return a.stride[1] * rows * graph.world == storage.num_elements ? rows : 0;
}

}  // namespace

void split_by_boxes(FusedGraph& graph, const Options& options) {
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    FusedOp& op = graph.ops[i];
    const int64_t rows = rows_of_box(graph, op);
    if (rows <= 0 || !can_batch_rows(graph, op, rows, options)) continue;
    batch_rows(graph, op, rows);
    read_own_rows(graph, i);
  }
}

}  // namespace ark::planner
