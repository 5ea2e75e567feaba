#include "planner/verify/uses.h"

#include <algorithm>
#include <limits>

#include "device/abi/roles.h"
#include "planner/verify/checks.h"

namespace ark::planner {
namespace {

/// Runs of few rows that lie far apart (a column of a small batch), one box each: the hull of all of them would meet
/// those of all other columns.
void split_far_rows(const Box& box, std::vector<Box>& out) {
  constexpr int64_t kFew = 8, kFar = 4;
  if (box.num_dims > 0 && box.dims[0].count <= kFew) {
    Box row = box;
    --row.num_dims;
    std::copy(box.dims + 1, box.dims + box.num_dims, row.dims);
    if ((row.end() - row.begin) * kFar <= box.dims[0].stride) {
      for (int64_t i = 0; i < box.dims[0].count; ++i, row.begin += box.dims[0].stride) split_far_rows(row, out);
      return;
    }
  }
  out.push_back(box);
}

struct Hull {
  int64_t low = std::numeric_limits<int64_t>::max(), high = std::numeric_limits<int64_t>::min();
  bool dense = false;
  void add(const std::vector<Box>& boxes) {
    for (const Box& box : boxes) low = std::min(low, box.begin), high = std::max(high, box.end());
    dense = boxes.size() == 1 && boxes[0].num_dims == 0;
  }
};

/// By the region of all tiles together; tile by tile where that is too coarse to say that they stay in the buffer.
Hull hull_of(const plan::Plan& plan, const Use& use, int64_t bytes) {
  const plan::Op& op = plan.ops[static_cast<size_t>(use.op)];
  std::vector<Box> boxes;
  Hull hull;
  block_region(op, plan.programs, use.operand, use.how, whole_grid(op.record), bytes, boxes);
  hull.add(boxes);
  if (boxes.empty() || (hull.low >= 0 && hull.high <= bytes)) return hull;
  hull = {};
  for (int64_t t = 0; t < tiles_of(op.record); ++t) {
    boxes.clear();
    tile_region(op, plan.programs, use.operand, use.how, t, bytes, boxes);
    hull.add(boxes);
  }
  hull.dense = false;
  return hull;
}

/// Who sends for an uneven exchange counts as who writes its parts anew: what this rank has stored for others lies
/// behind it, and what others have stored, who reads waits for them to say (plan::kPart).
void add_parts(const plan::Plan& plan, size_t index, std::vector<Use>& uses) {
  for (size_t slot = 0; slot < plan.buffers.size(); ++slot) {
    const plan::Buffer& part = plan.buffers[slot];
    if (!plan::is_part(part.kind) || part.twin < 0 || sender_of_part(plan, part) != static_cast<int32_t>(index))
      continue;
    Use use;
    use.op = static_cast<int32_t>(index), use.operand = -1;
    use.slot = static_cast<uint32_t>(slot);
    use.how.write = use.how.anywhere = true;
    use.high = part.size_bytes;
    uses.push_back(std::move(use));
  }
}

template <class Region>
BoxPieces pieces(size_t count, const Region& region) {
  std::vector<Box> whole, boxes;
  BoxPieces out;
  out.at.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    whole.clear();
    boxes.clear();
    region(i, whole);
    for (const Box& box : whole) split_far_rows(box, boxes);
    for (const Box& box : boxes) out.at.push_back({box, box.end(), static_cast<int32_t>(i)});
  }
  for (const Piece& piece : out.at) out.longest = std::max(out.longest, piece.end - piece.box.begin);
  auto by_begin = [](const Piece& a, const Piece& b) { return a.box.begin < b.box.begin; };
  if (!std::is_sorted(out.at.begin(), out.at.end(), by_begin)) std::sort(out.at.begin(), out.at.end(), by_begin);
  return out;
}

}  // namespace

std::vector<Use> uses_of(const plan::Plan& plan, size_t index, const std::vector<OperandUse>& operands) {
  const plan::Op& op = plan.ops[index];
  std::vector<Use> uses;
  for (size_t i = 0; i < operands.size(); ++i) {
    if (!operands[i].used()) continue;
    Use use;
    use.op = static_cast<int32_t>(index);
    use.operand = static_cast<int32_t>(i);
    use.slot = op.operands[i].slot;
    use.how = operands[i];
    use.fresh = op.record.kind == abi::TaskKind::kAttentionDecode &&
                (i == abi::AttentionOperand::kK || i == abi::AttentionOperand::kV);
    use.of_source = abi::has_own_rows(op.record) && i == abi::MatmulOperand::kA;
    const plan::Buffer& buffer = plan.buffers[use.slot];
    const plan::Buffer& memory = plan.buffers[memory_slot(plan, use.slot)];
    const bool placed = memory.kind == plan::BufferKind::kArena || plan::is_read_box(memory.kind);
    use.place = placed ? memory.arena_offset : 0;
    const Hull hull = hull_of(plan, use, buffer.size_bytes);
    if (hull.low >= hull.high) continue;
    use.dense = hull.dense && !use.how.anywhere && !use.how.predicated;
    use.low = hull.low + use.place, use.high = hull.high + use.place;
    uses.push_back(std::move(use));
  }
  add_parts(plan, index, uses);
  return uses;
}

BoxPieces pieces_of(const plan::Plan& plan, const Use& use, std::span<const TileBlock> blocks) {
  const plan::Op& op = plan.ops[static_cast<size_t>(use.op)];
  const int64_t bytes = plan.buffers[use.slot].size_bytes;
  return pieces(blocks.size(), [&](size_t i, std::vector<Box>& boxes) {
    block_region(op, plan.programs, use.operand, use.how, blocks[i], bytes, boxes);
  });
}

BoxPieces tiles_of(const plan::Plan& plan, const Use& use) {
  const plan::Op& op = plan.ops[static_cast<size_t>(use.op)];
  const int64_t bytes = plan.buffers[use.slot].size_bytes;
  return pieces(static_cast<size_t>(tiles_of(op.record)), [&](size_t i, std::vector<Box>& boxes) {
    tile_region(op, plan.programs, use.operand, use.how, static_cast<int64_t>(i), bytes, boxes);
  });
}

}  // namespace ark::planner
