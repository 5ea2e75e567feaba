#include "planner/order/order_ops.h"

#include <algorithm>
#include <utility>

#include "planner/cost.h"
#include "planner/depend.h"

namespace ark::planner {
namespace {

struct Node {
  std::vector<int> before, behind;
  double work = 0;     // machine seconds
  double latency = 0;  // until its results can be read, alone
  double rank = 0;     // longest path from its start to the end
  double finish = 0, ready = 0;
  int open = 0;             // entries of `before` not yet placed
  bool sends_long = false;  // beside what comes before it (overlap.h): starts with its results, has no time
};

std::vector<Node> make_nodes(const FusedGraph& graph, const std::vector<std::vector<Dependence>>& deps,
                             const Machine& machine) {
  std::vector<Node> nodes(graph.ops.size());
  int exchange = -1;  // the last one: all ranks have them in the graph's order
  for (size_t i = 0; i < nodes.size(); ++i) {
    Node& node = nodes[i];
    for (const Dependence& dep : deps[i]) node.before.push_back(dep.before);
    if (is_exchange(graph, graph.ops[i])) {
      if (exchange >= 0) node.before.push_back(exchange);
      exchange = static_cast<int>(i);
    }
    std::sort(node.before.begin(), node.before.end());
    node.before.erase(std::unique(node.before.begin(), node.before.end()), node.before.end());
    node.open = static_cast<int>(node.before.size());
    for (int p : node.before) nodes[p].behind.push_back(static_cast<int>(i));
    const double tile = tile_seconds(graph, graph.ops[i], machine), link = link_seconds(graph, graph.ops[i], machine);
    node.work = tile * static_cast<double>(num_tiles(graph.ops[i].op.record)) / machine.num_workers;
    node.latency = std::max({node.work, tile, link}) + machine.costs.hop;
    node.sends_long = link > machine.long_send_seconds;
  }
  for (int i = static_cast<int>(nodes.size()) - 1; i >= 0; --i) {
    for (int next : nodes[i].behind) nodes[i].rank = std::max(nodes[i].rank, nodes[next].rank);
    nodes[i].rank += nodes[i].latency;
  }
  return nodes;
}

/// Work that can wait fills gaps, but not for ever: BERT-Large's backward held 2.2 GB of gradients for bias sums at its
/// end.
constexpr double kPatience = 100e-6;

/// An op's last tile ends later than the model says by as much as the workers' lists are apart: a tile of a matmul or
/// two. Who waits for that tile holds up its worker, so work that has time comes this much after its inputs.
constexpr double kSlack = 50e-6;

std::vector<int> place(std::vector<Node>& nodes, double hop) {
  std::vector<int> order, ready;
  for (int i = 0; i < static_cast<int>(nodes.size()); ++i) {
    if (nodes[i].open == 0) ready.push_back(i);
  }
  double now = 0;  // when the workers have done everything placed so far, if they never idle
  while (!ready.empty()) {
    double longest = 0;  // path that is left
    for (int i : ready) longest = std::max(longest, nodes[i].rank);
    auto start = [&](int i) {
      double at = now;
      for (int p : nodes[i].before) at = std::max(at, nodes[p].finish - (nodes[i].sends_long ? hop : 0));
      return at;
    };
    // when it should start: later than it could where others have a much longer path behind them
    auto wanted = [&](int i) {
      const bool has_time = !nodes[i].before.empty() && !nodes[i].sends_long && nodes[i].rank + 4 * kSlack < longest;
      return has_time ? std::max(now, nodes[i].ready + kSlack) : start(i);
    };
    // What has kept its inputs alive for long; then whatever can start without idling, by rank; else what can start
    // first. Ties: the graph's order.
    auto overdue = [&](int i) { return !nodes[i].before.empty() && now > nodes[i].ready + kPatience; };
    auto better = [&](int a, int b) {
      if (overdue(a) != overdue(b)) return overdue(a);
      if (overdue(a)) return nodes[a].ready != nodes[b].ready ? nodes[a].ready < nodes[b].ready : a < b;
      const double sa = wanted(a), sb = wanted(b);
      if (sa != sb) return sa < sb;
      if (nodes[a].rank != nodes[b].rank) return nodes[a].rank > nodes[b].rank;
      return a < b;
    };
    const auto best = std::min_element(ready.begin(), ready.end(), better);
    const int op = *best;
    ready.erase(best);
    const double at = start(op);
    nodes[op].finish = at + nodes[op].latency;
    now = at + nodes[op].work;
    order.push_back(op);
    for (int next : nodes[op].behind) {
      nodes[next].ready = std::max(nodes[next].ready, nodes[op].finish);
      if (--nodes[next].open == 0) ready.push_back(next);
    }
  }
  return order;
}

/// What `dependences` would find in the new order: who depends on whom stays, for the order keeps to it.
std::vector<std::vector<Dependence>> reordered(std::vector<std::vector<Dependence>> deps, const std::vector<int>& order,
                                               const std::vector<int>& position) {
  std::vector<std::vector<Dependence>> result(deps.size());
  for (size_t i = 0; i < order.size(); ++i) {
    std::vector<Dependence>& of_op = result[i];
    of_op = std::move(deps[static_cast<size_t>(order[i])]);
    for (Dependence& dep : of_op) {
      dep.op = static_cast<int>(i);
      dep.before = position[static_cast<size_t>(dep.before)];
    }
    // through one operand, and by one hazard, earlier ops come first
    auto same = [](const Dependence& a, const Dependence& b) {
      return a.operand == b.operand && a.hazard == b.hazard && a.hazard != Hazard::kAfter;
    };
    for (auto begin = of_op.begin(); begin != of_op.end();) {
      const auto end = std::find_if(begin + 1, of_op.end(), [&](const Dependence& dep) { return !same(*begin, dep); });
      std::stable_sort(begin, end, [](const Dependence& a, const Dependence& b) { return a.before < b.before; });
      begin = end;
    }
  }
  return result;
}

}  // namespace

void order_ops(Draft& draft, const Options& options) {
  std::vector<FusedOp>& ops = draft.graph.ops;
  std::vector<std::vector<Dependence>> deps = dependences(draft.graph);
  std::vector<Node> nodes = make_nodes(draft.graph, deps, options.machine);
  const std::vector<int> order = place(nodes, options.machine.costs.hop);
  std::vector<int> position(order.size());
  for (size_t i = 0; i < order.size(); ++i) position[order[i]] = static_cast<int>(i);
  std::vector<FusedOp> ordered;
  ordered.reserve(ops.size());
  for (int old : order) {
    ordered.push_back(std::move(ops[old]));
    for (int& before : ordered.back().after) before = position[before];
  }
  ops = std::move(ordered);
  draft.deps = reordered(std::move(deps), order, position);
}

}  // namespace ark::planner
