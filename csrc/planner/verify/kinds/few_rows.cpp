// Few-row products: kMatmulRows.
#include <algorithm>
#include <array>

#include "base/check.h"
#include "planner/verify/kinds/kinds.h"

namespace ark::planner {
namespace {

void uses(const plan::Op& op, const std::vector<Program>& programs, std::vector<OperandUse>& uses) {
  const abi::MatmulRowsParams& p = op.record.params.rows;
  plan::program_uses(op, programs, p.prologue, p.prologue_operand, uses);
  for (int s = 0; s < p.num_segments; ++s) {
    const abi::Segment& segment = p.segment[s];
    plan::program_uses(op, programs, segment.program, segment.first_operand, uses);
    uses.at(static_cast<size_t>(segment.weight)).read = true;
    if (p.gated) uses.at(static_cast<size_t>(segment.weight2)).read = true;
  }
}

/// Columns of units [own, end) of a segment whose units are pairs: whole chunks of pairs are one run, a part of a chunk
/// is two. Calls emit(first column, number).
template <class Emit>
void pair_columns(int64_t own, int64_t end, int64_t distance, const Emit& emit) {
  while (own < end) {
    const int64_t chunk = own / distance, in_chunk = own % distance;
    if (in_chunk == 0 && end - own >= distance) {
      const int64_t whole = (end - own) / distance;
      emit(2 * own, 2 * whole * distance);
      own += whole * distance;
      continue;
    }
    const int64_t count = std::min(end - own, distance - in_chunk);
    for (int lane = 0; lane < 2; ++lane) emit(2 * chunk * distance + in_chunk + lane * distance, count);
    own += count;
  }
}

/// Units [first, last] of a few-row product.
void rows_region(const plan::Op& op, const std::vector<Program>& programs, const abi::Operand& x, int operand,
                 int64_t first, int64_t last, BoxEmitter& emitter) {
  const abi::MatmulRowsParams& p = op.record.params.rows;
  for (int s = 0; s < p.num_segments; ++s) {
    const abi::Segment& segment = p.segment[s];
    const bool weight = operand == segment.weight || (p.gated && operand == segment.weight2);
    const int count = programs[static_cast<size_t>(segment.program)].num_operands;
    const bool epilogue = operand >= segment.first_operand && operand < segment.first_operand + count;
    const int64_t own = std::max<int64_t>(first - segment.first_unit, 0);
    const int64_t end = std::min<int64_t>(last + 1 - segment.first_unit, segment.num_units);
    if ((!weight && !epilogue) || own >= end) continue;
    auto columns = [&](int64_t column, int64_t number) {
      column += segment.column;
      if (weight) emitter.box(std::array{Range{column, number, x.stride[0]}, Range{0, p.k, x.stride[1]}});
      if (!weight) emitter.box(std::array{Range{0, p.m, x.stride[1]}, Range{column, number, x.stride[2]}});
    };
    if (p.lanes == 2 && !p.gated) {
      pair_columns(own, end, p.pair_distance, columns);
    } else {
      columns(own, end - own);
    }
  }
  if (p.prologue < 0) return;
  const Program& prologue = programs[static_cast<size_t>(p.prologue)];
  if (operand < p.prologue_operand || operand >= p.prologue_operand + prologue.num_operands) return;
  const int rank = prologue.num_dims;
  emitter.box(std::array{Range{0, p.m, x.stride[rank - 2]}, Range{0, p.k, x.stride[rank - 1]}});
}

void region(const Region& r, BoxEmitter& emitter) {
  tile_runs(r.op.record, r.tiles, [&](int64_t first, int64_t last) {
    rows_region(r.op, r.programs, r.x(), r.operand, first, last, emitter);
  });
}

/// A segment's own coordinates; none where several segments share the operand.
std::optional<Dims> coordinates(const Region& r) {
  const abi::MatmulRowsParams& p = r.op.record.params.rows;
  const abi::Operand& x = r.x();
  std::optional<Dims> dims;
  for (int s = 0; s < p.num_segments; ++s) {
    const abi::Segment& g = p.segment[s];
    const int end = g.first_operand + r.programs[static_cast<size_t>(g.program)].num_operands;
    if (r.operand < g.first_operand || r.operand >= end) continue;
    if (dims) return std::nullopt;
    dims = Dims{{p.m, x.stride[1]}, {int64_t{g.num_units} * (p.gated ? 1 : p.lanes), x.stride[2]}};
  }
  return dims;
}

/// A weight [k][n], 16 bits, as a map shows it.
void column_map(const RecordCheck& check, const abi::Segment& g, int weight, int number) {
  const abi::MatmulRowsParams& p = check.record().params.rows;
  check.need(weight >= 0 && static_cast<size_t>(weight) < check.op().operands.size(), "weight ", weight);
  const abi::Operand& x = check.op().operands[static_cast<size_t>(weight)];
  const auto type = static_cast<DType>(x.dtype);
  check.need(x.dtype == p.dtype && (type == DType::kBF16 || type == DType::kF16) && x.stride[0] == 1,
             "strips of columns of ", name(type), ", ", x.stride[0], " apart, expected 16 bits of the product's type");
  const int64_t last = g.column + int64_t{g.num_units} * (p.gated ? 1 : p.lanes);
  check.map(number, weight, {last, p.k, 1}, {p.columns, std::min(abi::kColumnBoxK, abi::column_page_k(p.columns)), 1},
            {x.stride[1], 0});
}

/// Weights [k][n] in strips: as wide as sums have room, of pairs in one chunk, each weight shown by a map.
void columns(const RecordCheck& check) {
  const abi::MatmulRowsParams& p = check.record().params.rows;
  if (p.columns == 0) return;
  const int most = abi::most_columns(p.m, p.lanes);
  const bool wide = p.columns >= abi::kLeastColumns && (p.columns & (p.columns - 1)) == 0;
  check.need(wide && p.columns <= most, "strips of ", p.columns, " columns, expected a power of two from ",
             abi::kLeastColumns, " to ", most);
  check.need(p.lanes == 1 || p.gated || p.pair_distance % p.columns == 0, "strips of ", p.columns, " columns, pairs ",
             p.pair_distance, " apart");
  check.need(p.m <= abi::kMostFewRows && p.k % 8 == 0, "strips of columns and ", p.m, " rows, ", p.k,
             " k, expected at most ", abi::kMostFewRows, " rows and a multiple of 8");
  check.need(p.m > 1 || p.k <= abi::kMostColumnsOneRowK, "strips of columns and ", p.k, " k of one row, at most ",
             abi::kMostColumnsOneRowK);
  const int windows = abi::column_windows(p.m, p.k);
  // A page of more than a slice would end at a window's end, where the loader counts on.
  const bool long_pages = abi::column_page_k(p.columns) > abi::kColumnSliceK;
  const int most_windows = p.lanes == 1 && !long_pages ? abi::kMostWindows : 1;
  check.need(windows <= most_windows, "strips of columns in ", windows, " windows of k, at most ", most_windows);
  for (int s = 0; s < p.num_segments; ++s) {
    const abi::Segment& g = p.segment[s];
    column_map(check, g, g.weight, p.map[s]);
    if (p.gated) column_map(check, g, g.weight2, p.map[p.num_segments + s]);
  }
}

void record(const RecordCheck& check) {
  const abi::MatmulRowsParams& p = check.record().params.rows;
  check.program(p.prologue, p.prologue_operand, ProgramKind::kPrologue);
  check.need(p.num_segments > 0 && p.num_segments <= abi::kMaxSegments, p.num_segments, " segments");
  check.need(p.lanes == 1 || (p.lanes == 2 && (p.gated || p.pair_distance > 0)), p.lanes, " lanes, pair distance ",
             p.pair_distance);
  int64_t units = 0;
  for (int s = 0; s < p.num_segments; ++s) {
    const abi::Segment& g = p.segment[s];
    check.program(g.program, g.first_operand, ProgramKind::kEpilogue);
    check.need(g.first_unit == units, "segment ", s, " begins at unit ", g.first_unit, ", expected ", units);
    bool whole = p.lanes == 1 || p.gated || g.num_units % p.pair_distance == 0;
    check.need(whole, "segment ", s, " has ", g.num_units, " units in pairs ", p.pair_distance, " apart");
    units += g.num_units;
  }
  columns(check);
  check.need(units == p.num_units, "segments of ", units, " units, expected ", p.num_units);
  check.grid({p.num_units, 1, 1});
}

/// Strips of columns are counted from an item's first unit of a segment: it begins where a strip does, so that one that
/// ends within a strip leaves its rest to nobody. With every unit in one item, and every column in one unit, each
/// column is in one strip. Sums of one row, or that wait for further windows of k, have room for so many columns.
void item(const RecordCheck& check, int64_t first, int64_t count) {
  const abi::MatmulRowsParams& p = check.record().params.rows;
  if (p.columns == 0) return;
  int64_t strips = 0;
  for (int s = 0; s < p.num_segments; ++s) {
    const abi::Segment& g = p.segment[s];
    const int64_t begin = std::max<int64_t>(first - g.first_unit, 0);
    const int64_t end = std::min<int64_t>(first + count - g.first_unit, g.num_units);
    if (begin >= end) continue;
    check.need(begin % p.columns == 0, "an item begins at unit ", begin, " of segment ", s, ", within a strip of ",
               p.columns, " columns");
    strips += ceil_div(end - begin, p.columns);
  }
  const bool held = p.m == 1 || abi::column_windows(p.m, p.k) > 1;
  check.need(!held || strips * p.columns * p.lanes <= abi::kMaxRowsPerItem, "an item of ", strips, " strips of ",
             p.columns * p.lanes, " columns, expected at most ", abi::kMaxRowsPerItem, " columns");
}

}  // namespace

extern const Reading kReadFewRows = {uses, region, coordinates, record, item};

}  // namespace ark::planner
