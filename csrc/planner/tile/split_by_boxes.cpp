#include "planner/tile/split_by_boxes.h"

#include <algorithm>

#include "planner/tile/align_operands.h"
#include "planner/tile/tile.h"

namespace ark::planner {
namespace {

using X = abi::MatmulOperand;

/// The program's values do not depend on where a row is: a row of a batch has another number.
bool knows_no_rows(const FusedGraph& graph, const FusedOp& op) {
  const std::vector<Instr>& instrs = graph.programs[static_cast<size_t>(op.op.record.params.matmul.program)].instrs;
  return std::none_of(instrs.begin(), instrs.end(), [](const Instr& i) { return i.op == Opcode::kIndex; }) &&
         std::all_of(op.access.begin(), op.access.end(), [](Access a) { return a != Access::kParameters; });
}

/// Rows of operand a that one rank has sent, all of which begin on a tile; 0: it is something else.
int64_t rows_of_box(const FusedGraph& graph, const FusedOp& op) {
  const abi::OpRecord& record = op.op.record;
  if (plan::kind_of(record).order != plan::Order::kGroupsOfM || graph.world == 1) return 0;
  const abi::MatmulTileParams& p = record.params.matmul;
  const abi::Operand &a = op.op.operands[X::kA], &b = op.op.operands[X::kB];
  const Storage& storage = graph.storages[a.slot];
  if (!storage.joined_boxes() || p.batch != 1 || a.offset != 0 || p.m % graph.world != 0) return 0;
  const int64_t rows = p.m / graph.world;
  const bool whole = rows % kMatmulTileM == 0 && a.stride[1] * rows * graph.world == storage.num_elements;
  return whole && b.slot != a.slot && tma_addressable(b, 2, 1, 1) ? rows : 0;
}

}  // namespace

void split_by_boxes(FusedGraph& graph, const Options& options) {
  for (FusedOp& op : graph.ops) {
    const int64_t rows = rows_of_box(graph, op);
    if (rows == 0 || !knows_no_rows(graph, op)) continue;
    abi::MatmulTileParams& p = op.op.record.params.matmul;
    const int64_t tile = int64_t{kMatmulTileM} * kMatmulTileM;
    if (int64_t{p.m} * p.n < options.machine.num_workers * tile) continue;
    p.batch = graph.world;
    p.m = static_cast<int>(rows);
    op.op.record.size[0] = graph.world;
    op.op.record.size[1] = static_cast<int>(rows);
    for (abi::Operand& x : op.op.operands) x.stride[0] = rows * x.stride[1];
    op.op.operands[X::kB].stride[0] = 0;
  }
}

}  // namespace ark::planner
