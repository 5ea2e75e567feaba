// The ops of a row select: one a round of digits but for the last, and one that finds that digit by itself; one that
// lists and one that finds; a single one where a row is one worker's.
#include "planner/fuse/row_select.h"

#include <algorithm>
#include <utility>

#include "base/unsupported.h"
#include "device/abi/roles.h"
#include "plan/kinds.h"
#include "planner/fuse/emit.h"

namespace ark::planner {
namespace {

using X = abi::RowSelectOperand;

int64_t blocks(int64_t size, int64_t block) { return (size + block - 1) / block; }

}  // namespace

/// As many as give every worker one, each a vector for all of its threads or more, and short enough for masses. Two or
/// three parts, and parts of short rows, save less time than their ops take.
SelectParts select_parts(int64_t rows, int64_t size, int num_workers) {
  constexpr int64_t kLeast = 1024, kShortRow = 8192, kFewest = 4, kVector = 4;
  const int64_t least = blocks(size, abi::kSelectMostPart);
  int64_t parts = size < kShortRow ? 1 : std::min<int64_t>(num_workers / rows, blocks(size, kLeast));
  parts = std::min<int64_t>(parts, abi::kSelectMostParts);
  if (parts < kFewest) parts = 1;
  parts = std::max({parts, least, int64_t{1}});
  const int64_t part = std::max(blocks(blocks(size, parts), kVector) * kVector, kVector);
  return {static_cast<int>(std::max<int64_t>(blocks(size, part), 1)), static_cast<int>(part)};
}

/// Maxima of so many parts that a bound of what is asked for is among them, which is a number of elements.
bool select_has_lists(DType bound, int64_t tops) {
  return bound == DType::kI64 && tops >= abi::kSelectLeastTops && tops <= abi::kSelectMostTops;
}

/// What all ops of the select share; operands that are not there.
FusedOp Emitter::row_select_op(const ir::Node& node, int round) const {
  const Tensor& rows = state_.tensor(node.inputs[0]);
  FusedOp op;
  abi::OpRecord& record = op.op.record;
  record.kind = abi::TaskKind::kRowSelect;
  std::fill(record.size, record.size + abi::kMaxDims, 1);
  record.size[0] = rows.sizes[0];
  abi::RowSelectParams& p = record.params.row_select;
  p.rows = static_cast<int>(rows.sizes[0]), p.size = static_cast<int>(rows.sizes[1]);
  p.by_mass = state_.tensor(node.inputs[1]).dtype == DType::kF32;
  p.round = round;
  const SelectParts parts = select_parts(p.rows, p.size, state_.machine.num_workers);
  p.parts = parts.count, p.part = parts.size;
  op.op.operands.assign(X::kCount, absent_operand());
  for (const plan::Role& role : plan::kind_of(record).roles) op.access.push_back(role.access);
  return op;
}

/// Memory for what the op hands to the next one.
abi::Operand Emitter::select_storage(const FusedOp& op, int operand) {
  const abi::RowSelectParams& p = op.op.record.params.row_select;
  const bool sums = operand == X::kSums;
  const DType dtype = sums ? DType::kI32 : DType::kI64;
  const int64_t inner = !sums ? abi::kSelectState : p.listed != 0 ? abi::kSelectListWords : abi::kSelectWords;
  const std::vector<int64_t> strides = {p.parts * inner, inner, 1};
  abi::Operand x = absent_operand();
  x.slot = static_cast<uint32_t>(add_storage(dtype, {p.rows, p.parts, inner}, strides, sums ? "sums" : "state"));
  x.dtype = static_cast<short>(dtype);
  std::ranges::copy(strides, x.stride);
  return x;
}

void Emitter::row_select_group(int g) {
  const int number = state_.groups[static_cast<size_t>(g)].anchors[0];
  const ir::Node& node = state_.node(number);
  const int bound = node.inputs[1];
  const bool of_values = node.inputs.size() >= 3;
  const Tensor& rows = state_.tensor(node.inputs[0]);
  if (rows.sizes[0] == 0) return;
  constexpr int64_t kMost = abi::kSelectMost;
  check_node(rows.sizes[0] <= INT32_MAX && rows.sizes[1] <= kMost, node.name, "row select '", node.name, "' of ",
             rows.sizes[0], " rows of ", rows.sizes[1], ", at most ", kMost);
  const bool whole = row_select_op(node, 0).op.record.params.row_select.parts == 1;
  abi::Operand sums = absent_operand(), state = absent_operand();  // of the op before
  const bool listed = of_values && select_has_lists(state_.tensor(bound).dtype, state_.tensor(node.inputs[2]).sizes[1]);
  for (int round = 0; round <= (whole ? 0 : abi::kSelectLast); round += listed ? abi::kSelectLast : 1) {
    FusedOp op = row_select_op(node, round);
    op.op.record.params.row_select.listed = listed ? 1 : 0;
    std::vector<abi::Operand>& x = op.op.operands;
    const bool last = whole || round == abi::kSelectLast;
    x[X::kSumsBefore] = std::exchange(sums, absent_operand());
    x[X::kStateBefore] = std::exchange(state, absent_operand());
    const bool joins = of_values && round == 0;
    const int distance = of_values && !joins ? node.outputs[1] : node.inputs[0];
    if (rows.sizes[1] > 0) x[X::kDistance] = strided_operand(distance, DType::kF32);
    if (joins) x[X::kTops] = strided_operand(node.inputs[2], DType::kF32);
    if (joins) x[X::kMade] = strided_operand(node.outputs[1], DType::kF32);
    if (joins) op.op.record.params.row_select.tops = static_cast<int>(state_.tensor(node.inputs[2]).sizes[1]);
    if (whole || listed || round == 1) x[X::kBound] = strided_operand(bound, state_.tensor(bound).dtype);
    if (last) x[X::kOut] = strided_operand(node.outputs[0], DType::kI64);
    if (last && node.inputs.size() == 4) {
      x[X::kShare] = strided_operand(node.inputs[3], DType::kF32);
      x[X::kCut] = strided_operand(node.outputs[2], DType::kI64);
    }
    if (!last) x[X::kSums] = sums = select_storage(op, X::kSums);
    if (!last && round > 0) x[X::kState] = state = select_storage(op, X::kState);
    op.op.flops = whole ? abi::kSelectRounds * rows.numel : last ? 0 : rows.numel;
    finish(std::move(op), {number}, number);
    plan::Op& done = result_.ops.back().op;
    if (!last) done.name += cat(".round", round);
    if (round == abi::kSelectLast)  // it reads few elements, or none
      done.bytes = std::max<int64_t>(done.bytes - rows.numel * size_bytes(rows.dtype), 0);
  }
}

}  // namespace ark::planner
