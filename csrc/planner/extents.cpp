#include "planner/extents.h"

#include <algorithm>

#include "base/check.h"
#include "plan/params.h"

namespace ark::planner {
namespace {

using plan::Axis;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Sizes that every family calls the same.
Extent common(Axis axis) {
  switch (axis) {
    case Axis::kOne:
      return {};
    case Axis::kRangeValue:
      return {abi::kRangeValues};
    case Axis::kMaxSum:
      return {2};
    case Axis::kSelectState:
      return {abi::kSelectState};
    default:
      throw InternalError(cat("an op has no axis ", static_cast<int>(axis), " of a task kind's table"));
  }
}

Extent extent(const abi::ProgramParams&, Axis axis) { return common(axis); }

Extent extent(const abi::MatmulRowsParams& p, Axis axis) {
  if (axis == Axis::kUnit) return {p.num_units};
  return common(axis);
}

Extent extent(const abi::MatmulTileParams& p, Axis axis) {
  switch (axis) {
    case Axis::kBatch:
      return {p.batch};
    case Axis::kM:
      return {p.m, p.tile_m};
    case Axis::kN:
      return {p.n, p.tile_n};
    case Axis::kK:
      return {p.k};
    default:
      return common(axis);
  }
}

Extent extent(const abi::AttentionParams& p, Axis axis) {
  const int64_t group = p.heads / p.kv_heads, head_parts = std::max(1, p.head_parts);
  switch (axis) {
    case Axis::kBatch:
      return {p.batch};
    case Axis::kHead:
      return {p.heads, 1, Axis::kHeadPart, group / head_parts};
    case Axis::kKvHead:
      return {p.kv_heads, 1, Axis::kHead, 1, group, Axis::kHeadPart, head_parts};
    case Axis::kHeadPart:
      return {p.kv_heads * head_parts};
    case Axis::kQuery:
      return {p.queries, p.tile_q};
    case Axis::kKey:
      return {p.keys, p.tile_k};
    case Axis::kHeadDim:
      return {p.head_dim};
    case Axis::kValueDim:
      return {p.value_dim};
    case Axis::kRangeBlock:
      return {ceil_div(p.queries, abi::kRangeBlock), 1, p.tile_q == abi::kRangeBlock ? Axis::kQuery : Axis::kNone};
    case Axis::kPart:
      return {p.parts};
    case Axis::kPartRow:
      return {group * p.queries};
    default:
      return common(axis);
  }
}

Extent extent(const abi::MaskRangeParams& p, Axis axis) {
  switch (axis) {
    case Axis::kBatch:
      return {p.batch};
    case Axis::kHead:
      return {p.heads};
    case Axis::kQuery:
      return {p.queries, p.block};
    case Axis::kKey:
      return {p.keys};
    case Axis::kRangeBlock:
      return {ceil_div(p.queries, p.block), 1, Axis::kQuery};
    default:
      return common(axis);
  }
}

Extent extent(const abi::ScatterSumParams& p, Axis axis) {
  switch (axis) {
    case Axis::kM:
      return {p.rows, p.tile_rows};
    case Axis::kN:
      return {p.columns, p.lanes * p.vector};
    case Axis::kK:
      return {p.terms};
    default:
      return common(axis);
  }
}

Extent extent(const abi::RowSelectParams& p, Axis axis) {
  switch (axis) {
    case Axis::kM:
      return {p.rows, 1};
    case Axis::kN:
      return {p.size, 1, Axis::kPart, p.round < abi::kSelectLast ? p.part : std::max(p.size, 1)};
    case Axis::kPart:
      return {p.round < abi::kSelectLast ? p.parts : 1};
    case Axis::kAllParts:
      return {p.parts};
    case Axis::kSelectWord:
      return {p.listed != 0 ? abi::kSelectListWords : abi::kSelectWords};
    case Axis::kSelectTop:
      return {p.tops};
    default:
      return common(axis);
  }
}

Extent extent(const abi::RowDrawParams& p, Axis axis) {
  const bool last = p.stage == abi::kDrawLast;
  switch (axis) {
    case Axis::kM:
      return {p.rows, 1};
    case Axis::kN:
      return {p.size, 1, Axis::kPart, last ? p.size : p.part};
    case Axis::kPart:
      return {last ? 1 : p.parts};
    case Axis::kAllParts:
      return {p.parts};
    case Axis::kDrawListWord:
      return {abi::kDrawListWords};
    case Axis::kDrawMassWord:
      return {abi::kDrawMassWords};
    default:
      return common(axis);
  }
}

int coordinate_of(const plan::Kind& kind, Axis axis) {
  for (int i = 0; i < 3; ++i)
    if (kind.grid[i] == axis && axis != Axis::kNone && axis != Axis::kOne) return i;
  return -1;
}

}  // namespace

Extent extent_of(const abi::OpRecord& record, Axis axis) {
  return plan::visit_params(record, [&](const auto& params) { return extent(params, axis); });
}

Cut cut_of(const abi::OpRecord& record, Axis axis) {
  const plan::Kind& kind = plan::kind_of(record);
  const Extent extent = extent_of(record, axis);
  if (const int own = coordinate_of(kind, axis); own >= 0) return {extent.size, own, extent.block};
  if (const int other = coordinate_of(kind, extent.follows); other >= 0)
    return {extent.size, other, extent.follow_block, extent.repeat};
  if (const int other = coordinate_of(kind, extent.or_follows); other >= 0)
    return {extent.size, other, 1, extent.or_repeat};
  return {extent.size};
}

const Axis* axes_of(const abi::OpRecord& record, int operand) {
  const plan::Kind& kind = plan::kind_of(record);
  const auto number = static_cast<size_t>(operand);
  if (number < kind.roles.size()) return kind.roles[number].axes;
  if (abi::has_own_rows(record) && operand == abi::MatmulOperand::kOwn) return kind.roles[abi::MatmulOperand::kA].axes;
  if (abi::is_gated_tile(record) && operand == abi::MatmulOperand::kB2) return kind.roles[abi::MatmulOperand::kB].axes;
  static constexpr Axis kOfEpilogue[] = {Axis::kBatch, Axis::kM, Axis::kN, Axis::kNone};
  check(kind.family == plan::Family::kMatmul, "a ", kind.type, " has no operand ", operand);
  return kOfEpilogue;
}

Grid grid_of(const abi::OpRecord& record) {
  Grid grid{};
  for (int i = 0; i < 3; ++i) {
    const Extent extent = extent_of(record, plan::kind_of(record).grid[i]);
    grid.tiles[i] = ceil_div(extent.size, extent.block);
  }
  return grid;
}

}  // namespace ark::planner
