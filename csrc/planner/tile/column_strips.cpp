#include "planner/tile/column_strips.h"

#include <algorithm>

namespace ark::planner {
namespace {

/// Of what memory gives where lines of k are 32, 64 or 128 bytes long. Reckoned, not measured.
double line_rate(int columns) { return columns >= 64 ? 1.0 : columns == 32 ? 0.95 : 0.8; }

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
  map.sizes = {segment.column + segment.num_units, p.k, 1};
  map.strides_bytes = {row, row * p.k};
  map.box = {p.columns, std::min(abi::column_page_k(p.columns), abi::kColumnBoxK), 1};
  draft.maps.push_back(std::move(map));
  return static_cast<int>(draft.maps.size()) - 1;
}

}  // namespace

int strip_columns(const abi::MatmulRowsParams& params, int workers) {
  int best = abi::kStripRows;
  double best_rate = 0;
  for (int columns = abi::kStripRows; columns <= abi::most_columns(params.m); columns *= 2) {
    const int64_t strips = strips_of(params, columns), turns = (strips + workers - 1) / workers;
    if (columns > abi::kStripRows && strips < 2 * int64_t{workers}) break;  // a stage is short: all should share it
    const double rate = line_rate(columns) * static_cast<double>(strips) / static_cast<double>(turns * workers);
    if (rate > best_rate) best = columns, best_rate = rate;
  }
  return best;
}

void set_column_strips(Draft& draft, FusedOp& op, const Options& options) {
  abi::MatmulRowsParams& p = op.op.record.params.rows;
  if (p.columns == 0) return;
  p.columns = strip_columns(p, options.machine.num_workers);
  for (int s = 0; s < p.num_segments; ++s)
    p.map[s] = add_column_map(draft, p, p.segment[s], op.op.operands[static_cast<size_t>(p.segment[s].weight)]);
}

}  // namespace ark::planner
