#include "planner/tile/tile_scatter_sum.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/unsupported.h"
#include "planner/tile/beside.h"
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

/// Nanoseconds (reckoned) of the worker that has most tiles; `beside`: what stands beside the op. A tile has its own
/// cost, a step for so many indices, a turn for so many rows, and waits for terms, so many of which are under way,
/// while what it moves is under way too.
double time_of(const abi::ScatterSumParams& p, int64_t rows, int64_t lanes, int64_t workers, double beside) {
  constexpr double kTile = 2000, kStepTime = 500, kTurn = 100, kWait = 1000, kBytes = 25;  // bytes a nanosecond
  const double per_row = static_cast<double>(p.terms) / static_cast<double>(p.rows);
  const int64_t groups = kThreads / lanes, shares = std::max<int64_t>(1, groups / rows), turns = ceil_div(rows, groups);
  const double ahead = shares == 1 ? 16 : 8, in_warp = 32 / static_cast<double>(lanes);  // terms; groups
  const double own = per_row * static_cast<double>(turns) / static_cast<double>(shares);
  // a warp waits for the group that has most terms, some more than the mean
  const double longest = in_warp > 1 ? own + std::sqrt(own) : own;
  const double waits = std::max(std::min(1.0, own * in_warp), longest / ahead);
  const double bytes = static_cast<double>(rows * lanes * p.vector * size_bytes(static_cast<DType>(p.dtype)));
  const double look = kTile + kStepTime * static_cast<double>(ceil_div(p.terms, kStep));
  return static_cast<double>(turns_of(tiles_of(p, rows, lanes), beside, workers)) *
         (look + std::max(static_cast<double>(turns) * kTurn + kWait * waits, bytes * (1 + per_row) / kBytes));
}

}  // namespace

void tile_scatter_sum(FusedOp& op, const Options& options, double beside) {
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
      const double time = time_of(p, rows, lanes, workers, beside);
      if (time < best) best = time, p.tile_rows = rows, p.lanes = lanes;
    }
  }
  const int64_t steps = ceil_div(tiles_of(p, p.tile_rows, p.lanes), workers) * ceil_div(p.terms, kStep);
  check_node(steps <= kMostSteps, op.op.node, "sum by index '", op.op.name, "' of ", p.terms, " rows into ", p.rows,
             " (native where workers look at few of the indices: ", steps, " steps of ", kStep, ", at most ",
             kMostSteps, ")");
}

}  // namespace ark::planner
