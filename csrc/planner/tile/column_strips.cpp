#include "planner/tile/column_strips.h"

#include <algorithm>

namespace ark::planner {
namespace {

int64_t strips_of(const abi::MatmulRowsParams& params, int columns) {
  int64_t strips = 0;
  for (int s = 0; s < params.num_segments; ++s) strips += (params.segment[s].num_units + columns - 1) / columns;
  return strips;
}

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

double line_rate(const Costs& costs, int columns) {
  switch (columns) {
    case 8:
      return costs.strip_8;
    case 16:
      return costs.strip_16;
    case 32:
      return costs.strip_32;
  }
  return 1.0;
}

int strip_columns(const abi::MatmulRowsParams& params, const Machine& machine) {
  const int workers = machine.num_workers;
  int best = abi::kLeastColumns;
  double best_rate = 0;
  for (int columns = best; columns <= abi::most_columns(params.m, params.lanes); columns *= 2) {
    const int64_t strips = strips_of(params, columns), turns = (strips + workers - 1) / workers;
    const bool pairs = params.lanes == 2 && params.gated == 0;
    if (pairs && params.pair_distance % columns != 0) break;
    if (columns > abi::kStripRows && strips < 2 * int64_t{workers}) break;  // a stage is short: all should share it
    const double rate =
        line_rate(machine.costs, columns) * static_cast<double>(strips) / static_cast<double>(turns * workers);
    if (rate > best_rate) best = columns, best_rate = rate;
  }
  return best;
}

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
