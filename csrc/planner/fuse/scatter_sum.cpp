// The op of a sum of rows by index.
#include <algorithm>

#include "base/unsupported.h"
#include "device/abi/roles.h"
#include "plan/kinds.h"
#include "planner/fuse/emit.h"

namespace ark::planner {

void Emitter::scatter_sum_group(int g) {
  const int number = state_.groups[static_cast<size_t>(g)].anchors[0];
  const ir::Node& node = state_.node(number);
  const int source = node.inputs[0], index = node.inputs[1], out = node.outputs[0];
  const Tensor &terms = state_.tensor(source), &rows = state_.tensor(out);
  if (rows.numel == 0) return;
  constexpr int64_t kMost = INT32_MAX - 4096;  // a turn's indices behind the last one have numbers too
  check_node(rows.sizes[0] <= kMost && rows.sizes[1] <= kMost && terms.sizes[0] <= kMost, node.name, "sum by index '",
             node.name, "' of ", terms.sizes[0], " rows of ", rows.sizes[1], " into ", rows.sizes[0], ", at most ",
             kMost);
  FusedOp op;
  abi::OpRecord& record = op.op.record;
  record.kind = abi::TaskKind::kScatterSum;
  std::fill(record.size, record.size + abi::kMaxDims, 1);
  record.size[0] = rows.sizes[0], record.size[1] = rows.sizes[1];
  abi::ScatterSumParams& p = record.params.scatter_sum;
  p.rows = static_cast<int>(rows.sizes[0]), p.columns = static_cast<int>(rows.sizes[1]);
  p.terms = static_cast<int>(terms.sizes[0]);
  p.dtype = static_cast<int>(rows.dtype);
  p.index_dtype = static_cast<int>(state_.tensor(index).dtype);
  p.without = node.attrs.imm_int;
  using X = abi::ScatterSumOperand;
  op.op.operands.assign(X::kCount, absent_operand());
  if (p.terms > 0) {
    op.op.operands[X::kIndex] = strided_operand(index, state_.tensor(index).dtype);
    op.op.operands[X::kSource] = strided_operand(source, terms.dtype);
  }
  op.op.operands[X::kOut] = strided_operand(out, rows.dtype);
  for (const plan::Role& role : plan::kind_of(record).roles) op.access.push_back(role.access);
  op.op.flops = terms.numel;
  finish(std::move(op), {number}, number);
}

}  // namespace ark::planner
