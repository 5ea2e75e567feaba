#include "planner/tile/column_strips.h"

#include <algorithm>

#include "planner/strip_width.h"

namespace ark::planner {
namespace {

int add_column_map(Draft& draft, const abi::MatmulRowsParams& p, const abi::Segment& segment, const abi::Operand& x) {
  const int64_t element = size_bytes(static_cast<DType>(x.dtype)), row = x.stride[1] * element;
  plan::TensorMap map;
  map.slot = x.slot;
  map.offset_bytes = x.offset * element;
  map.dtype = static_cast<DType>(x.dtype);
  map.sizes = {segment.column + int64_t{segment.num_units} * (p.gated ? 1 : p.lanes), p.k, 1};
  map.strides_bytes = {row, row * p.k};
  map.box = {p.columns, std::min(abi::column_page_k(p.columns), abi::kColumnBoxK), 1};
  draft.maps.push_back(std::move(map));
  return static_cast<int>(draft.maps.size()) - 1;
}

}  // namespace

void set_column_strips(Draft& draft, FusedOp& op, const Options& options) {
  abi::MatmulRowsParams& p = op.op.record.params.rows;
  if (p.columns == 0) return;
  p.columns = strip_columns(p, options.machine);
  const auto map_of = [&](const abi::Segment& segment, int weight) {
    return add_column_map(draft, p, segment, op.op.operands[static_cast<size_t>(weight)]);
  };
  for (int s = 0; s < p.num_segments; ++s) p.map[s] = map_of(p.segment[s], p.segment[s].weight);
  for (int s = 0; s < p.num_segments && p.gated; ++s)
    p.map[p.num_segments + s] = map_of(p.segment[s], p.segment[s].weight2);
}

}  // namespace ark::planner
