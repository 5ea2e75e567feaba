// Units of few-row products, from the record: for the loaders, which are one piece of code for all forms.
#pragma once
#include "device/loop/pipeline.cuh"

namespace ark::device {

/// The units of an item that lie in segment s.
struct RowsRange {
  int first, count;  // relative to the segment
  ARK_DEVICE RowsRange(const abi::Segment& s, const Task& task) {
    const int begin = max(task.first, s.first_unit), end = min(task.first + task.count, s.first_unit + s.num_units);
    first = begin - s.first_unit;
    count = max(0, end - begin);
  }
};

/// Output column (and weight row) of a segment's unit.
ARK_DEVICE int rows_column(const abi::MatmulRowsParams& p, const abi::Segment& s, int unit, int lane) {
  if (p.lanes == 1 || p.gated) return s.column + unit;
  // unit + (whole blocks before it) * distance + lane * distance
  return s.column + unit + (unit / p.pair_distance + lane) * p.pair_distance;
}

}  // namespace ark::device
