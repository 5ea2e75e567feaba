// Graphs with exchanges evaluated node by node for all ranks, in the plainest way. Values are f32 and computed exactly
// if they are small integers.
#pragma once
#include <algorithm>
#include <string>

#include "support/check.h"
#include "support/graph_builder.h"
#include "support/rank_threads.h"

namespace ark::test {

class RankEvaluator {
 public:
  RankEvaluator(const Graph& graph, const std::vector<Tensors>& inputs) : graph_(graph) {
    for (const Tensors& of_rank : inputs) {
      memory_.emplace_back(graph.values.size());
      for (size_t i = 0; i < graph.inputs.size(); ++i) at(memory_.size() - 1, graph.inputs[i]) = of_rank[i];
    }
    for (const Node& node : graph.nodes) run(node);
  }
  std::vector<Tensors> outputs() const {
    std::vector<Tensors> out(memory_.size());
    for (size_t r = 0; r < memory_.size(); ++r)
      for (ValueId id : graph_.outputs) out[r].push_back(memory_[r][static_cast<size_t>(id)]);
    return out;
  }

 private:
  using Index = std::vector<int64_t>;

  const Value& value(ValueId id) const { return graph_.values[static_cast<size_t>(id)]; }
  Floats& at(size_t rank, ValueId id) { return memory_[rank][static_cast<size_t>(id)]; }
  Index sizes(ValueId id) const {
    Index out;
    for (const Size& s : value(id).sizes) out.push_back(s.value);
    return out;
  }

  /// Element of a value or a view; the last dimensions of `x` count, those of size 1 broadcast.
  float& element(size_t rank, ValueId id, const Index& x) {
    const Value& v = value(id);
    int64_t place = v.offset.value;
    const size_t skip = x.size() - v.sizes.size();
    for (size_t d = 0; d < v.sizes.size(); ++d)
      if (v.sizes[d].value != 1) place += x[d + skip] * v.strides[d].value;
    return at(rank, v.base < 0 ? id : v.base)[static_cast<size_t>(place)];
  }

  template <class F>
  static void for_each(const Index& sizes, const F& f) {
    int64_t total = 1;
    for (int64_t n : sizes) total *= n;
    Index x(sizes.size());
    for (int64_t i = 0; i < total; ++i) {
      int64_t rest = i;
      for (size_t d = sizes.size(); d-- > 0; rest /= sizes[d]) x[d] = rest % sizes[d];
      f(x);
    }
  }

  void run(const Node& node) {
    for (size_t r = 0; r < memory_.size(); ++r)
      for (ValueId out : node.outputs) {
        int64_t total = 1;
        for (int64_t n : sizes(out)) total *= n;
        if (value(out).base < 0) at(r, out).assign(static_cast<size_t>(total), 0);
      }
    for (size_t r = 0; r < memory_.size(); ++r) run(node, r);
  }

  void run(const Node& node, size_t rank) {
    const ValueId out = node.outputs[0];
    switch (node.op) {
      case OpKind::kView:
        return;
      case OpKind::kFull:
        return for_each(sizes(out),
                        [&](const Index& x) { element(rank, out, x) = static_cast<float>(node.attrs.imm); });
      case OpKind::kPointwise:
        return for_each(sizes(out), [&](const Index& x) { element(rank, out, x) = pointwise(node, rank, x); });
      case OpKind::kReduce:
        return for_each(sizes(node.inputs[0]), [&](const Index& x) { add_to_sum(node, rank, x); });
      case OpKind::kMatmul:
        return for_each({sizes(out)[0], sizes(out)[1], sizes(node.inputs[0])[1]}, [&](const Index& x) {
          element(rank, out, {x[0], x[1]}) +=
              element(rank, node.inputs[0], {x[0], x[2]}) * element(rank, node.inputs[1], {x[2], x[1]});
        });
      case OpKind::kCat:
        return cat_rows(node, rank);
      case OpKind::kExchange:
        for (size_t from = 0; from < memory_.size(); ++from)
          for_each(sizes(out), [&](const Index& x) {
            element(rank, node.outputs[from], x) = element(from, node.inputs[node.inputs.size() == 1 ? 0 : rank], x);
          });
        return;
      default:
        throw InternalError(cat("rank evaluator: no rule for ", name(node.op)));
    }
  }

  float pointwise(const Node& node, size_t rank, const Index& x) {
    const float a = element(rank, node.inputs[0], x), b = element(rank, node.inputs.back(), x);
    switch (node.attrs.opcode) {
      case Opcode::kAdd:
        return a + b;
      case Opcode::kSub:
        return a - b;
      case Opcode::kMul:
        return a * b;
      case Opcode::kMaximum:
        return std::max(a, b);
      case Opcode::kMinimum:
        return std::min(a, b);
      case Opcode::kNeg:
        return -a;
      case Opcode::kRelu:
        return std::max(a, 0.0f);
      default:
        throw InternalError(cat("rank evaluator: no rule for ", name(node.attrs.opcode)));
    }
  }

  /// Of one reduced dimension, which stays with size 1.
  void add_to_sum(const Node& node, size_t rank, const Index& x) {
    Index kept = x;
    kept[static_cast<size_t>(node.attrs.dims[0])] = 0;
    element(rank, node.outputs[0], kept) += element(rank, node.inputs[0], x);
  }

  void cat_rows(const Node& node, size_t rank) {
    int64_t first = 0;
    for (ValueId input : node.inputs) {
      for_each(sizes(input), [&](Index x) {
        const float moved = element(rank, input, x);
        x[static_cast<size_t>(node.attrs.dim)] += first;
        element(rank, node.outputs[0], x) = moved;
      });
      first += sizes(input)[static_cast<size_t>(node.attrs.dim)];
    }
  }

  const Graph& graph_;
  std::vector<Tensors> memory_;  // per rank and value
};

/// Runs the plan by ranks that are threads: every output of every launch is that of the graph, bit for bit.
inline void expect_evaluated(const Graph& graph, const plan::Plan& plan, const RankRun& run, const std::string& what) {
  const auto results = run_ranks(graph, plan, run);
  for (int launch = 0; launch < run.launches; ++launch) {
    std::vector<Tensors> inputs;
    for (int r = 0; r < plan.world; ++r) inputs.push_back(make_inputs(graph, r, launch, {}));
    const std::vector<Tensors> expected = RankEvaluator(graph, inputs).outputs();
    for (size_t r = 0; r < expected.size(); ++r)
      for (size_t o = 0; o < expected[r].size(); ++o) {
        const auto fresh = static_cast<size_t>(plan.outputs[o].fresh);
        if (results[static_cast<size_t>(launch)][r][fresh] != expected[r][o])
          fail(cat(what, ", launch ", launch, ", rank ", r, ", output ", o), __FILE__, __LINE__);
      }
  }
}

}  // namespace ark::test
