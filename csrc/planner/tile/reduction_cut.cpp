#include "planner/tile/reduction_cut.h"

#include <algorithm>
#include <cmath>

#include "planner/tile/beside.h"

namespace ark::planner {
namespace {

using abi::TaskKind;

/// Bytes of a tile of columns that nobody waits for: the workers' time counts, and a tile costs 4.5 us by itself, as
/// much as 140 KB.
constexpr double kPatientBytes = 384 * 1024;
constexpr int64_t kRestStep = 8;    // a rest begins at a whole vector of a row
constexpr double kRestCost = 1.15;  // what an op more has to save
constexpr double kOddPart = 1.2;    // of columns: a part of 128 rows lines up with a matmul's row block

/// Whether a part may have another length by the same program: moved operands are all that it takes.
bool may_have_rest(const FusedOp& op, const Program& program, int outermost) {
  const bool named = std::any_of(program.instrs.begin(), program.instrs.end(),
                                 [&](const Instr& in) { return in.op == Opcode::kIndex && in.aux == outermost; });
  return !named && std::all_of(op.op.operands.begin(), op.op.operands.end(),
                               [](const abi::Operand& x) { return x.index_operand < 0; });
}

}  // namespace

RowCut reduction_cut(const FusedOp& op, const Program& program, const CutRoom& room) {
  const abi::ProgramParams& p = op.op.record.params.program;
  const abi::OpRecord& record = op.op.record;
  const bool column = record.kind == TaskKind::kColumn;
  const int outermost = column ? 0 : p.num_dims - p.reduce_dims;
  int64_t kept = 1, reduced = 1;
  for (int d = 0; d < p.num_dims; ++d) {
    const bool is_reduced = column ? d < p.reduce_dims : d >= p.num_dims - p.reduce_dims;
    (is_reduced ? reduced : kept) *= record.size[d];
  }
  if (kept == 0 || reduced == 0) return {};
  // Columns: tiles of up to 256 columns. Rows: a CTA per row.
  const int64_t tiles = column ? (kept + 255) / 256 : kept;
  int64_t least = column ? 64 : 8192;
  if (column && !room.awaited) {
    const double row_bytes = static_cast<double>(op.op.bytes) / static_cast<double>(tiles * reduced);
    least = std::max<int64_t>(least, std::llround(kPatientBytes / row_bytes / 128) * 128);
  }
  if (p.num_dims == abi::kMaxDims || tiles * 2 > room.workers || reduced < 4 * least) return {};
  const int64_t size = record.size[outermost], inner = reduced / size;
  const bool rests = may_have_rest(op, program, outermost);
  RowCut best;
  double best_cost = 1e30;
  for (int64_t parts = 1; parts <= std::min<int64_t>(size, 4 * room.workers); ++parts) {
    RowCut cut{parts, size / parts, size / parts};
    if (size % parts != 0) {
      if (!rests || cut.length < kRestStep) continue;
      cut.step = cut.length -= cut.length % kRestStep;
      cut.rest = size - parts * cut.length;
      if (cut.rest > cut.length) continue;
    }
    const int64_t part = cut.length * inner;
    if (parts > 1 && part < least) continue;
    const auto rounds = static_cast<double>(turns_of(tiles * cut.results(), room.beside, room.workers));
    double cost = rounds * (static_cast<double>(part) + 0.25 * static_cast<double>(least));
    if (column && part % 128 != 0) cost *= kOddPart;
    if (cut.rest > 0) cost *= kRestCost;
    if (cost < best_cost) best = cut, best_cost = cost;
  }
  return best.parts == 1 ? RowCut{} : best;
}

}  // namespace ark::planner
