#include "planner/tile/column_width.h"

#include <algorithm>

#include "planner/tile/beside.h"
#include "planner/tile/flat_tiles.h"

namespace ark::planner {
namespace {

constexpr int64_t kColumnElements = 8192;  // that a tile should have
constexpr int64_t kFewColumns = 32;        // fewer are no row of vectors
constexpr int64_t kLongestVector = 8;
// Columns of a tile that reads few lines twice; beyond so many tiles a worker, what the last one leaves idle is little.
constexpr int64_t kEvenColumns = 128, kEvenRounds = 4;
constexpr int64_t kRoundColumns = 256;  // by vectors of eight, a warp's

/// Whether some rows of columns that are read begin between vectors.
bool is_off_alignment(const FusedOp& op) {
  const abi::ProgramParams& params = op.op.record.params.program;
  for (size_t x = 0; x < op.op.operands.size(); ++x) {
    const abi::Operand& o = op.op.operands[x];
    if (op.access[x] != Access::kRead || o.slot == abi::kNoSlot || o.stride[params.num_dims - 1] != 1) continue;
    const int64_t vector = 16 / size_bytes(static_cast<DType>(o.dtype));
    if (o.offset % vector != 0) return true;
    for (int d = 0; d + 1 < params.num_dims; ++d)
      if (op.op.record.size[d] > 1 && o.stride[d] % vector != 0) return true;
  }
  return false;
}

}  // namespace

int64_t column_width(const FusedOp& op, int64_t workers, double beside) {
  const abi::ProgramParams& params = op.op.record.params.program;
  const int64_t row = op.op.record.size[params.num_dims - 1], columns = params.num_rows;
  // parts of rows of few columns, which are runs of elements (device/program/column_folded.cuh)
  if (op.spread_rows && params.reduce_dims + 2 == params.num_dims && row < kFewColumns) return row;
  int64_t target = 32;
  const auto enough = [&](int64_t several) {
    return static_cast<double>(columns / (target * 2)) * beside >= static_cast<double>(several);
  };
  auto elements = [&] { return 2 * target * params.row_size; };  // of a tile twice as wide
  while (target < 256 && (enough(workers / 2) || elements() <= kColumnElements)) target *= 2;
  while (enough(workers) && elements() <= 4 * kColumnElements) target *= 2;
  // As many tiles for every worker, where narrower ones give each one more.
  const int64_t rounds = turns_of(ceil_div(columns, target), beside, workers);
  const auto tiles = static_cast<int64_t>(static_cast<double>(rounds * workers) / beside);
  const int64_t share = ceil_div(columns, std::max<int64_t>(1, tiles));
  const int64_t even = std::max(kEvenColumns, ceil_div(share, kLongestVector) * kLongestVector);
  if (rounds <= kEvenRounds && even * params.row_size >= kColumnElements) target = std::min(target, even);
  // Slots of rows off alignment are one more than their columns fill: as many columns as all threads have in one round.
  const bool rounds_off = target % kRoundColumns == 0 && columns > target && row == columns && is_off_alignment(op);
  return rounds_off ? target / kRoundColumns * (kRoundColumns - kLongestVector) : target;
}

}  // namespace ark::planner
