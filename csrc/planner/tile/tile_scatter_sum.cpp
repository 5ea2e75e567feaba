#include "planner/tile/tile_scatter_sum.h"

#include <algorithm>

#include "base/check.h"
#include "base/unsupported.h"
#include "planner/tile/flat_tiles.h"

namespace ark::planner {
namespace {

constexpr int64_t kThreads = 256, kStep = 1024;          // of a worker; indices that it looks at together
constexpr int64_t kMostListed = 700, kMostSteps = 4000;  // of a tile on average; of a worker (reckoned)

int64_t blocks_of(const abi::ScatterSumParams& p, int64_t lanes) { return ceil_div(p.columns, lanes * p.vector); }
int64_t tiles_of(const abi::ScatterSumParams& p, int64_t rows, int64_t lanes) {
  return ceil_div(p.rows, rows) * blocks_of(p, lanes);
}

/// A tile's list should hold its terms, if these are spread evenly.
bool is_listed(const abi::ScatterSumParams& p, int64_t rows, int64_t lanes) {
  return rows * lanes <= kThreads || rows * p.terms <= kMostListed * p.rows;
}

/// Nanoseconds (reckoned) of the worker that has most tiles. A tile has its own cost, a step for so many indices, and
/// waits for terms in every turn of its rows, while what it moves is under way.
double time_of(const abi::ScatterSumParams& p, int64_t rows, int64_t lanes, int64_t workers) {
  constexpr double kTile = 2000, kStepTime = 500, kTurn = 100, kWait = 1000, kBytes = 25;  // bytes a nanosecond
  constexpr double kAhead = 8;                                                             // terms under way
  const double per_row = static_cast<double>(p.terms) / static_cast<double>(p.rows);
  const int64_t groups = kThreads / lanes, shares = std::max<int64_t>(1, groups / rows);
  const double own = per_row / static_cast<double>(shares), of_warp = own * 32 / static_cast<double>(lanes);
  const double waits = own > 1 ? std::max(1.0, own / kAhead) : std::min(1.0, of_warp);
  const double turns = static_cast<double>(ceil_div(rows, groups)) * (kTurn + kWait * waits);
  const double bytes = static_cast<double>(rows * lanes * p.vector * size_bytes(static_cast<DType>(p.dtype)));
  const double look = kTile + kStepTime * static_cast<double>(ceil_div(p.terms, kStep));
  return static_cast<double>(ceil_div(tiles_of(p, rows, lanes), workers)) *
         (look + std::max(turns, bytes * (1 + per_row) / kBytes));
}

}  // namespace

void tile_scatter_sum(FusedOp& op, const Options& options) {
  using X = abi::ScatterSumOperand;
  abi::ScatterSumParams& p = op.op.record.params.scatter_sum;
  const int64_t most = 16 / size_bytes(static_cast<DType>(p.dtype)), workers = options.machine.num_workers;
  const auto whole = [&](int operand) {
    const abi::Operand& x = op.op.operands[static_cast<size_t>(operand)];
    const auto even = [&](int64_t n) { return n % most == 0; };
    return x.slot == abi::kNoSlot || (x.stride[1] == 1 && even(x.offset) && even(x.stride[0]));
  };
  p.vector = static_cast<int>(whole(X::kSource) && whole(X::kOut) && p.columns % most == 0 ? most : 1);
  double best = 1e30;
  for (const int lanes : {abi::kScatterFewLanes, abi::kScatterLanes}) {
    for (int rows = 1; rows <= abi::kScatterMostRows && is_listed(p, rows, lanes); rows *= 2) {
      const double time = time_of(p, rows, lanes, workers);
      if (time < best) best = time, p.tile_rows = rows, p.lanes = lanes;
    }
  }
  const int64_t steps = ceil_div(tiles_of(p, p.tile_rows, p.lanes), workers) * ceil_div(p.terms, kStep);
  check_node(steps <= kMostSteps, op.op.node, "sum by index '", op.op.name, "' of ", p.terms, " rows into ", p.rows,
             " (native where workers look at few of the indices: ", steps, " steps of ", kStep, ", at most ",
             kMostSteps, ")");
}

}  // namespace ark::planner
