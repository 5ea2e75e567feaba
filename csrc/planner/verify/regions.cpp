#include "planner/verify/regions.h"

#include <algorithm>

#include "planner/verify/emitter.h"
#include "planner/verify/kinds/kinds.h"

namespace ark::planner {
namespace {

/// What predicates guard stays within the buffer.
void clip(std::vector<Box>& boxes, size_t first, int64_t buffer_bytes) {
  for (size_t i = first; i < boxes.size();) {
    Box& box = boxes[i];
    const int64_t begin = std::max<int64_t>(box.begin, 0), end = std::min(box.end(), buffer_bytes);
    if (begin >= end) {
      boxes.erase(boxes.begin() + static_cast<std::ptrdiff_t>(i));
      continue;
    }
    if (begin != box.begin || end != box.end()) box = {.begin = begin, .width = end - begin};
    ++i;
  }
}

}  // namespace

std::vector<OperandUse> read_uses(const plan::Op& op, const std::vector<Program>& programs) {
  std::vector<OperandUse> uses(op.operands.size());
  reading_of(op.record.kind).uses(op, programs, uses);
  for (size_t i = 0; i < uses.size(); ++i)
    if (op.operands[i].slot == abi::kNoSlot) uses[i] = OperandUse{};
  return uses;
}

void block_region(const plan::Op& op, const std::vector<Program>& programs, int operand, const OperandUse& use,
                  const TileBlock& block, int64_t buffer_bytes, std::vector<Box>& boxes) {
  if (!use.used() || buffer_bytes == 0 || block.empty()) return;
  if (use.anywhere) {
    boxes.push_back({.begin = 0, .width = buffer_bytes});
    return;
  }
  const size_t first = boxes.size();
  BoxEmitter emitter(op.operands[static_cast<size_t>(operand)], boxes);
  reading_of(op.record.kind).region({op, programs, operand, use, block}, emitter);
  // a predicate on the batch alone says nothing of rows and columns
  const bool by_batch = use.batch >= 0 && op.operands[static_cast<size_t>(operand)].stride[0] == 0;
  if (use.predicated && !by_batch) clip(boxes, first, buffer_bytes);
}

void tile_region(const plan::Op& op, const std::vector<Program>& programs, int operand, const OperandUse& use,
                 int64_t tile, int64_t buffer_bytes, std::vector<Box>& boxes) {
  block_region(op, programs, operand, use, block_of_tile(op.record, tile), buffer_bytes, boxes);
}

}  // namespace ark::planner
