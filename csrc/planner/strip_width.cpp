#include "planner/strip_width.h"

namespace ark::planner {
namespace {

int64_t strips_of(const abi::MatmulRowsParams& params, int columns) {
  int64_t strips = 0;
  for (int s = 0; s < params.num_segments; ++s) strips += (params.segment[s].num_units + columns - 1) / columns;
  return strips;
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

}  // namespace ark::planner
