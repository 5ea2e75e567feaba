#include "planner/tile/tile_row_select.h"

#include "device/abi/roles.h"

namespace ark::planner {

/// Rows whose vectors of 16 bytes are aligned are read by them.
void tile_row_select(FusedOp& op) {
  constexpr int kVector = 4;
  abi::RowSelectParams& p = op.op.record.params.row_select;
  const auto operand = [&](int number) -> const abi::Operand& { return op.op.operands[static_cast<size_t>(number)]; };
  const auto even = [](int64_t n) { return n % kVector == 0; };
  const auto aligned = [&](const abi::Operand& x) {
    return x.slot != abi::kNoSlot && x.stride[1] == 1 && even(x.offset) && even(x.stride[0]);
  };
  const bool alike = p.tops == 0 || aligned(operand(abi::RowSelectOperand::kMade));
  p.vector = alike && aligned(operand(abi::RowSelectOperand::kDistance)) ? kVector : 1;
}

/// The same, where both lie so.
void tile_row_draw(FusedOp& op) {
  constexpr int kVector = 4;
  abi::RowDrawParams& p = op.op.record.params.row_draw;
  p.vector = kVector;
  for (const int number : {abi::RowDrawOperand::kValues, abi::RowDrawOperand::kNoise}) {
    const abi::Operand& x = op.op.operands[static_cast<size_t>(number)];
    const bool aligned = x.stride[1] == 1 && x.offset % kVector == 0 && x.stride[0] % kVector == 0;
    if (x.slot != abi::kNoSlot && !aligned) p.vector = 1;
  }
}

}  // namespace ark::planner
