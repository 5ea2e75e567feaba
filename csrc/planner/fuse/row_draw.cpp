// The ops of a row draw: one that lists, one that weighs, one that chooses; that one alone where a row is one worker's.
#include <algorithm>
#include <utility>

#include "base/unsupported.h"
#include "device/abi/roles.h"
#include "plan/kinds.h"
#include "planner/fuse/emit.h"
#include "planner/fuse/row_select.h"

namespace ark::planner {
namespace {

using Draw = abi::RowDrawOperand;

}  // namespace

/// What all ops of the draw share; operands that are not there.
FusedOp Emitter::row_draw_op(const ir::Node& node, int stage) const {
  const Tensor& rows = state_.tensor(node.inputs[0]);
  FusedOp op;
  abi::OpRecord& record = op.op.record;
  record.kind = abi::TaskKind::kRowDraw;
  std::fill(record.size, record.size + abi::kMaxDims, 1);
  record.size[0] = rows.sizes[0];
  abi::RowDrawParams& p = record.params.row_draw;
  p.rows = static_cast<int>(rows.sizes[0]), p.size = static_cast<int>(rows.sizes[1]);
  const int64_t most = abi::kDrawMostParts * rows.sizes[0];
  const int workers = static_cast<int>(std::min<int64_t>(state_.machine.num_workers, most));
  const SelectParts parts = select_parts(p.rows, p.size, workers);
  p.parts = parts.count, p.part = parts.size;
  p.stage = p.parts == 1 ? abi::kDrawLast : stage;
  op.op.operands.assign(Draw::kCount, absent_operand());
  for (const plan::Role& role : plan::kind_of(record).roles) op.access.push_back(role.access);
  return op;
}

/// Memory for what the op hands to those behind.
abi::Operand Emitter::draw_storage(const FusedOp& op, int operand) {
  const abi::RowDrawParams& p = op.op.record.params.row_draw;
  const bool lists = operand == Draw::kLists;
  const DType dtype = lists ? DType::kI32 : DType::kI64;
  const int64_t inner = lists ? abi::kDrawListWords : abi::kDrawMassWords;
  const std::vector<int64_t> strides = {p.parts * inner, inner, 1};
  abi::Operand x = absent_operand();
  x.slot = static_cast<uint32_t>(add_storage(dtype, {p.rows, p.parts, inner}, strides, lists ? "lists" : "masses"));
  x.dtype = static_cast<short>(dtype);
  std::ranges::copy(strides, x.stride);
  return x;
}

void Emitter::row_draw_group(int g) {
  const int number = state_.groups[static_cast<size_t>(g)].anchors[0];
  const ir::Node& node = state_.node(number);
  const Tensor& rows = state_.tensor(node.inputs[0]);
  if (rows.sizes[0] == 0) return;
  constexpr int64_t kMost = abi::kSelectMost;
  check_node(rows.sizes[0] <= INT32_MAX && rows.sizes[1] <= kMost && rows.sizes[1] > 0, node.name, "row draw '",
             node.name, "' of ", rows.sizes[0], " rows of ", rows.sizes[1], ", at least 1 and at most ", kMost);
  abi::Operand lists = absent_operand(), masses = absent_operand();  // of the op before
  for (int stage = 0; stage <= abi::kDrawLast; ++stage) {
    FusedOp op = row_draw_op(node, stage);
    std::vector<abi::Operand>& x = op.op.operands;
    const bool whole = op.op.record.params.row_draw.parts == 1, last = whole || stage == abi::kDrawLast;
    x[Draw::kListsBefore] = std::exchange(lists, absent_operand());
    x[Draw::kMassesBefore] = std::exchange(masses, absent_operand());
    x[Draw::kValues] = strided_operand(node.inputs[0], DType::kF32);
    if (last || stage == 0) x[Draw::kNoise] = strided_operand(node.inputs[1], DType::kF32);
    if (last || stage == 1) x[Draw::kShare] = strided_operand(node.inputs[2], DType::kF32);
    if (last) x[Draw::kToken] = strided_operand(node.outputs[0], DType::kI64);
    if (last) x[Draw::kBest] = strided_operand(node.outputs[1], DType::kF32);
    if (!last && stage == 0) x[Draw::kLists] = lists = draw_storage(op, Draw::kLists);
    if (!last && stage == 1) x[Draw::kMasses] = masses = draw_storage(op, Draw::kMasses);
    op.op.flops = whole ? abi::kSelectRounds * rows.numel : last ? 0 : rows.numel;
    finish(std::move(op), {number}, number);
    plan::Op& done = result_.ops.back().op;
    if (!last) done.name += stage == 0 ? ".lists" : ".masses";
    if (whole) return;
    if (last) done.bytes = std::max<int64_t>(done.bytes - 2 * rows.numel * size_bytes(rows.dtype), 0);  // mostly
  }
}

}  // namespace ark::planner
