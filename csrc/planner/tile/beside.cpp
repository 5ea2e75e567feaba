#include "planner/tile/beside.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "planner/cost.h"
#include "planner/depend.h"

namespace ark::planner {
namespace {

/// Per op, the ops whose results it reads, or that it comes after.
std::vector<std::vector<size_t>> sources_of(const FusedGraph& graph) {
  std::vector<std::vector<size_t>> writers(graph.storages.size()), sources(graph.ops.size());
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    const FusedOp& op = graph.ops[i];
    for (const int before : op.after) sources[i].push_back(static_cast<size_t>(before));
    for (size_t x = 0; x < op.access.size(); ++x) {
      const uint32_t slot = op.op.operands[x].slot;
      if (op.access[x] == Access::kParameters || slot == abi::kNoSlot || op.access[x] == Access::kWrite) continue;
      sources[i].insert(sources[i].end(), writers[slot].begin(), writers[slot].end());
    }
    for (size_t x = 0; x < op.access.size(); ++x) {
      const uint32_t slot = op.op.operands[x].slot;
      if (op.access[x] == Access::kParameters || slot == abi::kNoSlot || op.access[x] == Access::kRead) continue;
      writers[slot].push_back(i);
    }
  }
  return sources;
}

/// What stands beside each op, of those that have its number in `groups`.
std::vector<double> beside_of(const FusedGraph& graph, const Options& options, const std::vector<int>& groups) {
  const size_t count = graph.ops.size();
  const std::vector<std::vector<size_t>> sources = sources_of(graph);
  std::vector<std::pair<int, int>> distance(count, {0, 0});  // from the beginning, from the end
  for (size_t i = 0; i < count; ++i)
    for (const size_t before : sources[i]) distance[i].first = std::max(distance[i].first, distance[before].first + 1);
  for (size_t i = count; i-- > 0;)
    for (const size_t before : sources[i])
      distance[before].second = std::max(distance[before].second, distance[i].second + 1);
  std::vector<double> seconds, beside;
  std::map<std::pair<std::pair<int, int>, int>, double> all;
  for (size_t i = 0; i < count; ++i) {
    seconds.push_back(floor_seconds(graph.ops[i].op, options.machine));
    all[{distance[i], groups[i]}] += seconds[i];
  }
  for (size_t i = 0; i < count; ++i)
    beside.push_back(seconds[i] > 0 ? all[{distance[i], groups[i]}] / seconds[i] : 1.0);
  return beside;
}

}  // namespace

std::vector<double> beside_ops(const FusedGraph& graph, const Options& options) {
  return beside_of(graph, options, std::vector<int>(graph.ops.size(), 0));
}

std::vector<double> alike_beside(const FusedGraph& graph, const Options& options) {
  std::vector<int> kinds;
  for (const FusedOp& op : graph.ops) kinds.push_back(static_cast<int>(op.op.record.kind));
  std::vector<double> beside = beside_of(graph, options, kinds);
  const std::vector<bool> awaited = awaited_ops(graph);
  for (size_t i = 0; i < beside.size(); ++i)
    if (awaited[i]) beside[i] = 1;
  return beside;
}

int64_t turns_of(int64_t tiles, double beside, int64_t workers) {
  return std::max<int64_t>(
      1, std::llround(std::ceil(static_cast<double>(tiles) * beside / static_cast<double>(workers) - 1e-6)));
}

}  // namespace ark::planner
