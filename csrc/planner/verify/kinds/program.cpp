// Tasks that are a program: pointwise, row, column.
#include <algorithm>
#include <vector>

#include "base/check.h"
#include "planner/verify/kinds/kinds.h"

namespace ark::planner {
namespace {

using abi::TaskKind;

void uses(const plan::Op& op, const std::vector<Program>& programs, std::vector<OperandUse>& uses) {
  const abi::ProgramParams& p = op.record.params.program;
  plan::program_uses(op, programs, p.program, p.first_operand, uses);
}

/// Blocks [first, last] of the kept elements of a column task, in splits [split, split + splits) of the reduced range.
/// A partial result of split s lies at x[0] = s.
void column_region(const plan::Op& op, const abi::Operand& x, const OperandUse& use, std::span<const Range> all,
                   int64_t split, int64_t splits, int64_t first, int64_t last, BoxEmitter& emitter) {
  const abi::ProgramParams& p = op.record.params.program;
  const std::span<const Range> reduced = all.first(static_cast<size_t>(p.reduce_dims)),
                               kept = all.subspan(static_cast<size_t>(p.reduce_dims));
  const int64_t num_kept = total(kept), num_reduced = total(reduced), portion = p.split > 0 ? p.split : num_reduced;
  const int64_t begin = first * p.tile, end = std::min((last + 1) * int64_t{p.tile}, num_kept);
  Ranges rows;
  if (use.once) {
    rows.push_back({split, splits, splits > 1 || split > 0 ? x.stride[0] : 0});
    return emitter.flat_range(merged(kept), begin, end, rows);
  }
  for (const Range& r : reduced) rows.push_back(r);
  if (portion < num_reduced) {
    // A range of reduced indices times a range of kept ones: whole reduced rows around it are close enough and a box.
    const int64_t inner = num_reduced / rows.at[0].count, from = split * portion / inner;
    rows.at[0].first = from;
    rows.at[0].count = (std::min((split + splits) * portion, num_reduced) + inner - 1) / inner - from;
  }
  emitter.flat_range(merged(kept), begin, end, rows);
}

/// Tiles [first, last] of a program task.
void program_region(const plan::Op& op, const abi::Operand& x, const OperandUse& use, int64_t first, int64_t last,
                    BoxEmitter& emitter) {
  const abi::ProgramParams& p = op.record.params.program;
  Ranges dims;
  for (int d = 0; d < p.num_dims; ++d) dims.push_back({0, op.record.size[d], x.stride[d]});
  const std::span<const Range> all(dims);
  // A reduction over nothing stores its results all the same.
  const bool column = op.record.kind == TaskKind::kColumn;
  const auto reduced = static_cast<size_t>(p.reduce_dims);
  const std::span<const Range> touched = !use.once ? all
                                         : column  ? all.subspan(reduced)
                                                   : all.first(all.size() - reduced);
  if (total(touched) == 0) return;
  if (column) {
    const int64_t blocks = (total(all.subspan(static_cast<size_t>(p.reduce_dims))) + p.tile - 1) / p.tile;
    if (first % blocks == 0 && last % blocks == blocks - 1)
      return column_region(op, x, use, all, first / blocks, (last + 1) / blocks - first / blocks, 0, blocks - 1,
                           emitter);
    for (int64_t split = first / blocks; split <= last / blocks; ++split)
      column_region(op, x, use, all, split, 1, std::max(first - split * blocks, int64_t{0}),
                    std::min(last - split * blocks, blocks - 1), emitter);
    return;
  }
  const auto outer = static_cast<size_t>(op.record.kind == TaskKind::kRow ? p.num_dims - p.reduce_dims : p.num_dims);
  Ranges row;
  for (const Range& r : all.subspan(outer)) row.push_back({0, use.once ? 1 : r.count, r.stride});
  emitter.flat_range(merged(all.first(outer)), first * p.tile,
                     std::min((last + 1) * int64_t{p.tile}, total(all.first(outer))), row);
}

void region(const Region& r, BoxEmitter& emitter) {
  tile_runs(r.op.record, r.tiles,
            [&](int64_t first, int64_t last) { program_region(r.op, r.x(), r.use, first, last, emitter); });
}

int64_t product(const abi::OpRecord& r, int first, int end) {
  int64_t n = 1;
  for (int d = first; d < end; ++d) n *= r.size[d];
  return n;
}

std::optional<Dims> coordinates(const Region& region) {
  const abi::OpRecord& r = region.op.record;
  const abi::Operand& x = region.x();
  const OperandUse& how = region.use;
  const abi::ProgramParams& p = r.params.program;
  Dims dims;
  int first = 0, end = p.num_dims;
  if (r.kind == TaskKind::kRow && how.once) end -= p.reduce_dims;
  if (r.kind == TaskKind::kColumn) {
    const int64_t kept = product(r, p.reduce_dims, p.num_dims), reduced = product(r, 0, p.reduce_dims);
    const bool split = p.split > 0 && p.split < reduced;
    if (how.once) {
      first = p.reduce_dims;
      const int64_t blocks = (kept + p.tile - 1) / p.tile;
      if (blocks > 0 && tiles_of(r) > blocks) dims.push_back({tiles_of(r) / blocks, x.stride[0]});
    } else if (split) {
      return std::nullopt;
    }
  }
  for (int d = first; d < end; ++d) dims.push_back({r.size[d], x.stride[d]});
  return dims;
}

/// Where an operand's rows begin, modulo `vector`: its first element, then from one row to the next.
std::vector<int64_t> rows_begin(const abi::OpRecord& r, const abi::Operand& x, int64_t vector) {
  std::vector<int64_t> at{(x.offset % vector + vector) % vector};
  for (int d = 0; d + 1 < r.params.program.num_dims; ++d)
    at.push_back(r.size[d] > 1 ? (x.stride[d] % vector + vector) % vector : 0);
  return at;
}

/// What is reached by an index or under a predicate moves by vectors as its record says, unasked (device code has
/// load_irregular): the index moves it by whole vectors, and vectors begin where it is aligned. They do so at the
/// rows' begin; in a pointwise task that may begin them anywhere, and in rows, where the other operands are aligned.
void irregular_vectors(const RecordCheck& check, const Program& code) {
  const abi::ProgramParams& p = check.record().params.program;
  const std::vector<bool> irregular = irregular_operands(code);
  const auto operand = [&](int i) -> const abi::Operand& {
    return check.op().operands[static_cast<size_t>(p.first_operand + i)];
  };
  const bool row = code.kind == ProgramKind::kRow, free = has_free_rows(code);
  for (int i = 0; i < code.num_operands; ++i) {
    const abi::Operand& x = operand(i);
    if (!irregular[static_cast<size_t>(i)] || x.slot == abi::kNoSlot || x.vector <= 1) continue;
    const int64_t vector = x.vector;
    check.need(x.stride[p.num_dims - 1] == 1, "operand ", i, " moves by vectors of ", vector, " along a stride of ",
               x.stride[p.num_dims - 1]);
    if (x.index_operand >= 0) {
      const abi::Operand& index = check.op().operands[static_cast<size_t>(x.index_operand)];
      check.need(index.stride[0] % vector == 0 && index.stride[1] % vector == 0, "operand ", i, " moves by vectors of ",
                 vector, ", its indices by ", index.stride[0], " and ", index.stride[1]);
    }
    const std::vector<int64_t> own = rows_begin(check.record(), x, vector);
    const bool aligned = std::ranges::all_of(own, [](int64_t at) { return at == 0; });
    check.need(free || aligned, "operand ", i, " moves by vectors of ", vector, ", its rows begin off alignment");
    for (int k = 0; k < code.num_operands && (row || free); ++k) {
      const abi::Operand& y = operand(k);
      const bool plain = !irregular[static_cast<size_t>(k)];
      if (y.slot == abi::kNoSlot || y.stride[p.num_dims - 1] != 1 || (row ? !plain : y.vector <= 1)) continue;
      const int64_t both = row ? vector : std::min<int64_t>(vector, y.vector);
      check.need(rows_begin(check.record(), x, both) == rows_begin(check.record(), y, both), "operand ", i,
                 " moves by vectors of ", both, ", which begin where operand ", k, " is aligned");
    }
  }
}

void record(const RecordCheck& check) {
  const ProgramKind kind = check.record().kind == TaskKind::kRow      ? ProgramKind::kRow
                           : check.record().kind == TaskKind::kColumn ? ProgramKind::kColumn
                                                                      : ProgramKind::kPointwise;
  const abi::ProgramParams& p = check.record().params.program;
  const Program& code = check.program(p.program, p.first_operand, kind);
  check.need(code.num_dims == p.num_dims && code.reduce_dims == p.reduce_dims, "its program has ", code.num_dims,
             " and ", code.reduce_dims, " dimensions, the record ", p.num_dims, " and ", p.reduce_dims);
  irregular_vectors(check, code);
  int64_t tiled = 1, reduced = 1;
  for (int d = 0; d < p.num_dims; ++d) {
    bool column = kind == ProgramKind::kColumn, row = kind == ProgramKind::kRow;
    bool inside = (column && d < p.reduce_dims) || (row && d >= p.num_dims - p.reduce_dims);
    (inside ? reduced : tiled) *= check.record().size[d];
  }
  if (tiled == 0) return;
  check.need(p.tile > 0, "tile ", p.tile);
  int64_t splits = kind == ProgramKind::kColumn && p.split > 0 ? std::max<int64_t>(1, ceil_div(reduced, p.split)) : 1;
  int64_t expected = ceil_div(tiled, p.tile) * splits;
  check.need(tiles_of(check.record()) == expected, tiles_of(check.record()), " tiles of ", p.tile, " for ", tiled,
             " elements, expected ", expected);
  if (kind == ProgramKind::kPointwise) return;
  check.need(p.num_rows == tiled && p.row_size == reduced, "rows ", p.num_rows, " of ", p.row_size, ", expected ",
             tiled, " of ", reduced);
}

}  // namespace

extern const Reading kReadProgram = {uses, region, coordinates, record};

}  // namespace ark::planner
