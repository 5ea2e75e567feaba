// The op of a row select.
#include <algorithm>

#include "base/unsupported.h"
#include "device/abi/roles.h"
#include "plan/kinds.h"
#include "planner/fuse/emit.h"

namespace ark::planner {

void Emitter::row_select_group(int g) {
  const int number = state_.groups[static_cast<size_t>(g)].anchors[0];
  const ir::Node& node = state_.node(number);
  const int distance = node.inputs[0], bound = node.inputs[1], out = node.outputs[0];
  const Tensor& rows = state_.tensor(distance);
  if (rows.sizes[0] == 0) return;
  constexpr int64_t kMost = abi::kSelectMost;
  check_node(rows.sizes[0] <= INT32_MAX && rows.sizes[1] <= kMost, node.name, "row select '", node.name, "' of ",
             rows.sizes[0], " rows of ", rows.sizes[1], ", at most ", kMost);
  FusedOp op;
  abi::OpRecord& record = op.op.record;
  record.kind = abi::TaskKind::kRowSelect;
  std::fill(record.size, record.size + abi::kMaxDims, 1);
  record.size[0] = rows.sizes[0];
  abi::RowSelectParams& p = record.params.row_select;
  p.rows = static_cast<int>(rows.sizes[0]), p.size = static_cast<int>(rows.sizes[1]);
  p.by_mass = state_.tensor(bound).dtype == DType::kF32;
  using X = abi::RowSelectOperand;
  op.op.operands.assign(X::kCount, absent_operand());
  if (p.size > 0) op.op.operands[X::kDistance] = strided_operand(distance, DType::kF32);
  op.op.operands[X::kBound] = strided_operand(bound, state_.tensor(bound).dtype);
  op.op.operands[X::kOut] = strided_operand(out, DType::kI64);
  for (const plan::Role& role : plan::kind_of(record).roles) op.access.push_back(role.access);
  op.op.flops = rows.numel;
  finish(std::move(op), {number}, number);
}

}  // namespace ark::planner
