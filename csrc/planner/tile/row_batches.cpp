#include "planner/tile/row_batches.h"

#include <algorithm>

#include "planner/tile/align_operands.h"
#include "planner/tile/tile_sizes.h"

namespace ark::planner {
namespace {

using X = abi::MatmulOperand;

/// The program's values do not depend on where a row is: a row of a batch has another number.
bool knows_no_rows(const FusedGraph& graph, const FusedOp& op) {
  const std::vector<Instr>& instrs = graph.programs[static_cast<size_t>(op.op.record.params.matmul.program)].instrs;
  return std::none_of(instrs.begin(), instrs.end(), [](const Instr& i) { return i.op == Opcode::kIndex; }) &&
         std::all_of(op.access.begin(), op.access.end(), [](Access a) { return a != Access::kParameters; });
}

}  // namespace

bool can_batch_rows(const FusedGraph& graph, const FusedOp& op, int64_t rows, const Options& options) {
  const abi::MatmulTileParams& p = op.op.record.params.matmul;
  const abi::Operand &a = op.op.operands[X::kA], &b = op.op.operands[X::kB];
  const int64_t least = int64_t{options.machine.num_workers} * kMatmulTileM * kMatmulTileM;
  return rows > 0 && rows % kMatmulTileM == 0 && int64_t{p.m} * p.n >= least && b.slot != a.slot &&
         tma_addressable(b, 2, 1, 1) && knows_no_rows(graph, op);
}

void batch_rows(const FusedGraph& graph, FusedOp& op, int64_t rows) {
  abi::MatmulTileParams& p = op.op.record.params.matmul;
  p.batch = graph.world;
  p.m = static_cast<int>(rows);
  op.op.record.size[0] = graph.world;
  op.op.record.size[1] = static_cast<int>(rows);
  for (abi::Operand& x : op.op.operands) x.stride[0] = rows * x.stride[1];
  op.op.operands[X::kB].stride[0] = 0;
}

}  // namespace ark::planner
