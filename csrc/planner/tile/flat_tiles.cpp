#include "planner/tile/flat_tiles.h"

#include <algorithm>

#include "planner/tile/beside.h"

namespace ark::planner {

std::vector<Joint> joint_dims(const FusedOp& op, int begin, int end) {
  std::vector<Joint> joint;
  for (int d = begin; d < end; ++d) {
    const int64_t size = op.op.record.size[d];
    if (size == 1) continue;
    bool merges = !joint.empty();
    for (size_t x = 0; merges && x < op.op.operands.size(); ++x) {
      if (op.access[x] == Access::kParameters) continue;
      const abi::Operand& operand = op.op.operands[x];
      // the previous dimension that is not of size 1
      int previous = d - 1;
      while (op.op.record.size[previous] == 1) --previous;
      merges = operand.stride[previous] == operand.stride[d] * size;
    }
    if (merges) {
      joint.back().size *= size;
    } else {
      joint.push_back({size, d});
    }
  }
  return joint;
}

int64_t aligned_tile(const std::vector<Joint>& joint, int64_t target, int64_t multiple) {
  int64_t total = 1;
  for (const Joint& j : joint) total *= j.size;
  if (total <= target) return std::max<int64_t>(1, total);
  int64_t inner = 1;
  for (int j = static_cast<int>(joint.size()) - 1; j >= 0; --j) {
    if (inner * joint[j].size > target) {
      // q of dimension j per tile; q divides it unless it is the outermost (which may end in a partial tile)
      int64_t q = std::max<int64_t>(1, target / inner);
      if (j > 0) {
        const int64_t step = multiple > 1 && inner == 1 && joint[j].size % 8 == 0 ? 8 : 1;
        int64_t best = std::max(step, q - q % step);
        while (best > step && joint[j].size % best != 0) best -= step;
        if (best * 4 >= q) q = best;
      } else if (inner == 1) {
        q = std::max<int64_t>(1, (q + multiple / 2) / multiple) * multiple;
      } else {  // a power of two of rows, so that tiles line up with the row blocks of matmuls
        int64_t power = 1;
        while (power * 3 <= q * 2) power *= 2;
        q = power;
      }
      return q * inner;
    }
    inner *= joint[j].size;
  }
  return inner;
}

namespace {

/// What a tile costs by itself, in elements: 1.5 us, in which a worker reads and writes so many.
constexpr int64_t kTileCost = 8192;

constexpr int64_t kFlatStep = 1024;  // what tiles of a one-dimensional domain are multiples of

int64_t flat_cost(int64_t total, int64_t tile, int64_t workers) {
  return ceil_div(ceil_div(total, tile), workers) * (tile + kTileCost);
}

/// The numbers up to `most` that divide n.
template <class F>
void each_divisor(int64_t n, int64_t most, const F& f) {
  for (int64_t d = 1; d <= most && d * d <= n; ++d) {
    if (n % d != 0) continue;
    f(d);
    if (n / d <= most) f(n / d);
  }
}

/// The storage of which a pointwise op writes slices and reads nothing; none: abi::kNoSlot.
uint32_t joined_storage(const FusedGraph& graph, const FusedOp& op) {
  if (op.op.record.kind != abi::TaskKind::kPointwise || is_exchange(graph, op)) return abi::kNoSlot;
  uint32_t found = abi::kNoSlot;
  for (size_t x = 0; x < op.access.size(); ++x)
    if (op.access[x] == Access::kWrite) found = op.op.operands[x].slot;
  for (size_t x = 0; x < op.access.size(); ++x)
    if ((op.access[x] == Access::kWrite) != (op.op.operands[x].slot == found)) return abi::kNoSlot;
  return found;
}

int64_t num_elements(const FusedOp& op) {
  int64_t total = 1;
  for (int d = 0; d < op.op.record.params.program.num_dims; ++d) total *= op.op.record.size[d];
  return total;
}

}  // namespace

int64_t workers_for(const FusedGraph& graph, const FusedOp& op, int64_t workers) {
  const uint32_t storage = joined_storage(graph, op);
  if (storage == abi::kNoSlot) return workers;
  const FusedOp *begin = graph.ops.data(), *end = begin + graph.ops.size();
  const auto writes_it = [&](const FusedOp* one) { return joined_storage(graph, *one) == storage; };
  int64_t elements = num_elements(op);
  for (const FusedOp* one = &op + 1; one != end && writes_it(one); ++one) elements += num_elements(*one);
  for (const FusedOp* one = &op; one != begin && writes_it(one - 1); --one) elements += num_elements(one[-1]);
  return std::max<int64_t>(1, num_elements(op) * workers / std::max<int64_t>(1, elements));
}

int64_t cheapest_tile(const std::vector<Joint>& joint, int64_t tile, int64_t workers) {
  int64_t total = 1;
  for (const Joint& j : joint) total *= j.size;
  if (joint.size() < 2 || total <= tile) return tile;
  const int64_t least = std::min(tile, kLeastFlatElements);
  int64_t best = tile, best_cost = flat_cost(total, tile, workers) * 19 / 20, inner = 1;
  const auto ask = [&](int64_t other) {
    const int64_t cost = flat_cost(total, other, workers);
    const bool one_each = ceil_div(total, other) <= workers;
    const bool fits = other >= least && other <= (one_each ? 2 : 1) * kMostFlatElements;
    if (fits && cost < best_cost) best = other, best_cost = cost;
  };
  for (size_t j = joint.size(); j-- > 1;) {
    const int64_t step = inner == 1 && joint[j].size % 8 == 0 ? 8 : 1, unit = inner;  // whole vectors if possible
    each_divisor(joint[j].size, 2 * kMostFlatElements / unit, [&](int64_t q) {
      if (q % step == 0) ask(q * unit);
    });
    inner *= joint[j].size;
  }
  // A power of two of rows, so that tiles line up with the row blocks of products.
  for (int64_t q = 1; q < joint[0].size && q * inner <= 2 * kMostFlatElements; q *= 2) ask(q * inner);
  return best;
}

int64_t free_tile(const std::vector<Joint>& joint, int64_t tile, double beside, int64_t workers) {
  int64_t total = 1, inner = 1;
  for (const Joint& j : joint) total *= j.size;
  if (beside <= 1 || total <= tile) return tile;
  const auto cost = [&](int64_t one) { return turns_of(ceil_div(total, one), beside, workers) * (one + kTileCost); };
  int64_t best = tile, best_cost = cost(tile) * 19 / 20;
  const auto ask = [&](int64_t other) {
    if (other <= tile || other > kMostFreeElements) return;
    if (const int64_t other_cost = cost(other); other_cost < best_cost) best = other, best_cost = other_cost;
  };
  for (size_t j = joint.size(); j-- > 1;) {
    const int64_t step = inner == 1 && joint[j].size % 8 == 0 ? 8 : 1, unit = inner;  // whole vectors if possible
    each_divisor(joint[j].size, kMostFreeElements / unit, [&](int64_t q) {
      if (q % step == 0) ask(q * unit);
    });
    inner *= joint[j].size;
  }
  // Of the outermost dimension any part: the last one may be smaller.
  const int64_t step = inner == 1 ? kFlatStep : 1, steps = ceil_div(joint[0].size, step);
  const int64_t most = std::min(steps, ceil_div(total, tile));
  for (int64_t tiles = 1; tiles <= most; ++tiles) ask(ceil_div(steps, tiles) * step * inner);
  return best;
}

}  // namespace ark::planner
