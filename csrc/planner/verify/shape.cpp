// Tiles cut the coordinates of an op into parts that do not meet. Where every coordinate has an element of its own,
// what two tiles write cannot meet either, and no tile need be looked at.
#include <algorithm>
#include <optional>
#include <vector>

#include "planner/verify/kinds/kinds.h"
#include "planner/verify/uses.h"

namespace ark::planner {
namespace {

/// The coordinates that an operand's elements belong to, cut by the tiles into parts that do not meet.
std::optional<Dims> coordinates(const plan::Plan& plan, const Use& use) {
  const plan::Op& op = plan.ops[static_cast<size_t>(use.op)];
  if (use.how.anywhere) return std::nullopt;
  return reading_of(op.record.kind).coordinates({op, plan.programs, use.operand, use.how, whole_grid(op.record)});
}

/// Every coordinate has an element of its own: each stride steps over all that the smaller ones reach.
bool one_to_one(Dims dims) {
  for (Dim& d : dims) d.stride = std::abs(d.stride);
  std::erase_if(dims, [](const Dim& d) { return d.count <= 1; });
  std::sort(dims.begin(), dims.end(), [](const Dim& a, const Dim& b) { return a.stride < b.stride; });
  int64_t reach = 1;
  for (const Dim& d : dims) {
    if (d.stride < reach) return false;
    reach += (d.count - 1) * d.stride;
  }
  return true;
}

bool boxes_apart(const plan::Plan& plan, const Use& a, const Use& b) {
  const plan::Op& op = plan.ops[static_cast<size_t>(a.op)];
  const int64_t bytes = plan.buffers[a.slot].size_bytes;
  std::vector<Box> x, y;
  block_region(op, plan.programs, a.operand, a.how, whole_grid(op.record), bytes, x);
  block_region(op, plan.programs, b.operand, b.how, whole_grid(op.record), bytes, y);
  for (const Box& p : x)
    for (const Box& q : y)
      if (overlap(p, q) != Overlap::kNo) return false;
  return true;
}

}  // namespace

bool apart_by_shape(const plan::Plan& plan, const Use& a, const Use& b) {
  if (tiles_of(plan.ops[static_cast<size_t>(a.op)].record) <= 1) return true;
  if (a.operand != b.operand && boxes_apart(plan, a, b)) return true;
  const std::optional<Dims> own = coordinates(plan, a);
  if (!own || !one_to_one(*own)) return false;
  if (a.operand == b.operand) return true;
  // Both touch the same elements at the same coordinates.
  const std::optional<Dims> other = coordinates(plan, b);
  const auto& operands = plan.ops[static_cast<size_t>(a.op)].operands;
  const abi::Operand &x = operands[static_cast<size_t>(a.operand)], &y = operands[static_cast<size_t>(b.operand)];
  auto same = [](const Dim& p, const Dim& q) { return p.count == q.count && (p.count <= 1 || p.stride == q.stride); };
  const bool rows = plan.ops[static_cast<size_t>(a.op)].record.kind == abi::TaskKind::kMatmulRows;
  return other && !rows && a.how.once == b.how.once && x.offset == y.offset &&
         size_bytes(static_cast<DType>(x.dtype)) == size_bytes(static_cast<DType>(y.dtype)) &&
         std::equal(own->begin(), own->end(), other->begin(), other->end(), same);
}

}  // namespace ark::planner
