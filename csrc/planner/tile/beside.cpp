#include "planner/tile/beside.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "planner/cost.h"
#include "planner/depend.h"

namespace ark::planner {
namespace {

/// How many ops each op has before it and behind it, by the longest way of results read and ops come after.
struct Distances {
  std::vector<int> begin, end;
};

template <typename Use>
void each_slot(const FusedOp& op, Access not_this, Use use) {
  for (size_t x = 0; x < op.access.size(); ++x) {
    const uint32_t slot = op.op.operands[x].slot;
    if (op.access[x] != Access::kParameters && op.access[x] != not_this && slot != abi::kNoSlot) use(slot);
  }
}

/// One walk each way: a slot keeps the farthest of its writers so far, and of its readers.
Distances distances_of(const FusedGraph& graph) {
  const size_t count = graph.ops.size();
  Distances of{std::vector<int>(count, 0), std::vector<int>(count, 0)};
  std::vector<int> written(graph.storages.size(), 0), read(graph.storages.size(), 0);
  for (size_t i = 0; i < count; ++i) {
    int& begin = of.begin[i];
    for (const int before : graph.ops[i].after) begin = std::max(begin, of.begin[static_cast<size_t>(before)] + 1);
    each_slot(graph.ops[i], Access::kWrite, [&](uint32_t slot) { begin = std::max(begin, written[slot]); });
    each_slot(graph.ops[i], Access::kRead, [&](uint32_t slot) { written[slot] = std::max(written[slot], begin + 1); });
  }
  for (size_t i = count; i-- > 0;) {
    int& end = of.end[i];
    each_slot(graph.ops[i], Access::kRead, [&](uint32_t slot) { end = std::max(end, read[slot]); });
    each_slot(graph.ops[i], Access::kWrite, [&](uint32_t slot) { read[slot] = std::max(read[slot], end + 1); });
    for (const int before : graph.ops[i].after) {
      int& others = of.end[static_cast<size_t>(before)];
      others = std::max(others, end + 1);
    }
  }
  return of;
}

/// What stands beside each op, of those that have its number in `groups`.
std::vector<double> beside_of(const FusedGraph& graph, const Options& options, const std::vector<int>& groups) {
  const size_t count = graph.ops.size();
  const Distances distances = distances_of(graph);
  std::vector<double> seconds, beside;
  std::map<std::pair<std::pair<int, int>, int>, double> all;
  for (size_t i = 0; i < count; ++i) {
    seconds.push_back(floor_seconds(graph.ops[i].op, options.machine));
    all[{{distances.begin[i], distances.end[i]}, groups[i]}] += seconds[i];
  }
  for (size_t i = 0; i < count; ++i) {
    const double same = all[{{distances.begin[i], distances.end[i]}, groups[i]}];
    beside.push_back(seconds[i] > 0 ? same / seconds[i] : 1.0);
  }
  return beside;
}

}  // namespace

std::vector<double> beside_ops(const FusedGraph& graph, const Options& options) {
  return beside_of(graph, options, std::vector<int>(graph.ops.size(), 0));
}

std::vector<double> alike_beside(const FusedGraph& graph, const Options& options) {
  if (!options.share_tiles) return std::vector<double>(graph.ops.size(), 1.0);
  std::vector<int> kinds;
  for (const FusedOp& op : graph.ops) kinds.push_back(static_cast<int>(op.op.record.kind));
  std::vector<double> beside = beside_of(graph, options, kinds);
  const std::vector<bool> read = read_ops(graph);
  for (size_t i = 0; i < beside.size(); ++i)
    if (read[i]) beside[i] = 1;
  return beside;
}

std::vector<double> free_beside(const FusedGraph& graph, const Options& options) {
  std::vector<bool> written(graph.storages.size(), false);
  for (const FusedOp& op : graph.ops) each_slot(op, Access::kRead, [&](uint32_t slot) { written[slot] = true; });
  std::vector<double> beside = alike_beside(graph, options);
  for (size_t i = 0; i < beside.size(); ++i) {
    each_slot(graph.ops[i], Access::kWrite, [&](uint32_t slot) {
      if (written[slot]) beside[i] = 1;
    });
    if (!graph.ops[i].after.empty()) beside[i] = 1;
  }
  return beside;
}

int64_t turns_of(int64_t tiles, double beside, int64_t workers) {
  return std::max<int64_t>(
      1, std::llround(std::ceil(static_cast<double>(tiles) * beside / static_cast<double>(workers) - 1e-6)));
}

}  // namespace ark::planner
