// Which reductions share an op: those of rows that it computes, and those that read what another one reads.
#include <algorithm>
#include <set>

#include "base/check.h"
#include "base/unsupported.h"
#include "planner/fuse/grouper.h"

namespace ark::planner {

using ir::Node;
using ir::OpKind;

void Grouper::reduce(int i) {
  const Node& node = state_.node(i);
  const int out = node.outputs[0], x = node.inputs[0];
  const int g = last_group(node);
  const bool alone = state_.no_claim[static_cast<size_t>(out)];
  if (!alone && g >= 0 && group(g).kind == GroupKind::kRow) {
    if (const std::optional<Coords> place = reduced_place(node, g)) {
      if (try_eval(out, g, *place) >= 0) return join(out, i, g, *place);
    }
  }
  if (!alone && g >= 0 && reduce_along_sums(i, g)) return;
  const std::vector<int64_t>& sizes = state_.tensor(x).sizes;
  for (int j = static_cast<int>(state_.groups.size()) - 1;
       !alone && j > g && j + kSiblingWindow > static_cast<int>(state_.groups.size()); --j) {
    const Group& y = group(j);
    if ((y.kind != GroupKind::kRow && y.kind != GroupKind::kColumn) || y.x_sizes != sizes ||
        y.x_dims != node.attrs.dims)
      continue;
    const int producer = state_.group(x);
    const bool same_producer = producer >= 0 && producer == state_.group(state_.node(y.anchors[0]).inputs[0]);
    if ((!same_producer && !shares_input(node, j)) || !has_room(node, j)) continue;
    const Coords place = kept_place(node, y.x_place);
    if (try_eval(out, j, place) >= 0) return join(out, i, j, place);
  }
  const int fresh = add_group(GroupKind::kRow, i);
  set_reduce_domain(state_.tensor(x), node, group(fresh));
  const Coords place = kept_place(node, group(fresh).x_place);
  check_node(try_eval(out, fresh, place) >= 0, node.name, "reduction '", node.name, "' cannot be addressed");
  own(out, fresh);
  state_.place[static_cast<size_t>(out)] = place;
}

/// Sums of boxes (and a residual) belong to no product that could store them, as the sums of one rank do. The rows that
/// read them compute and store them: the last group, when it does nothing else, becomes that of its first reduction.
bool Grouper::reduce_along_sums(int i, int g) {
  const Node& node = state_.node(i);
  const Tensor& x = state_.tensor(node.inputs[0]);
  const bool last = g + 1 == static_cast<int>(state_.groups.size());
  if (!last || group(g).kind != GroupKind::kPointwise || !group(g).index_stores.empty() || !reads_boxes(g))
    return false;
  const std::vector<int> values = group(g).values;
  const bool alike = std::all_of(values.begin(), values.end(), [&](int v) {
    return state_.tensor(v).sizes == x.sizes && state_.tensor(v).strides == x.strides && !is_box(state_, v);
  });
  if (!alike) return false;
  const Group old = group(g);
  group(g).dims.clear();
  set_reduce_domain(x, node, group(g));
  auto place_values = [&] {
    for (int v : values) state_.place[static_cast<size_t>(v)] = group(g).x_place;
    trials_[static_cast<size_t>(g)].reset();
  };
  place_values();
  const Coords place = kept_place(node, group(g).x_place);
  if (group(g).kind == GroupKind::kRow && try_eval(node.outputs[0], g, place) >= 0) {
    join(node.outputs[0], i, g, place);
    return true;
  }
  group(g) = old;
  place_values();
  return false;
}

bool Grouper::reads_boxes(int g) const {
  const std::vector<int>& values = state_.groups[static_cast<size_t>(g)].values;
  return std::any_of(values.begin(), values.end(), [&](int v) {
    const std::vector<ir::ValueId>& inputs = state_.node(state_.tensor(v).node).inputs;
    return std::any_of(inputs.begin(), inputs.end(), [&](int u) { return is_box(state_, state_.owner(u)); });
  });
}

void Grouper::join(int out, int node, int g, const Coords& place) {
  group(g).anchors.push_back(node);
  own(out, g);
  state_.place[static_cast<size_t>(out)] = place;
}

bool Grouper::shares_input(const Node& node, int g) {
  auto leaves = [&](const Node& n) {
    std::set<int> found;
    std::vector<int> stack{state_.owner(n.inputs[0])};
    for (int budget = 32; budget > 0 && !stack.empty(); --budget) {
      const int v = stack.back();
      stack.pop_back();
      if (!found.insert(v).second) continue;
      const Tensor& t = state_.tensor(v);
      if (t.node < 0 || state_.node(t.node).op != OpKind::kPointwise) continue;
      for (ir::ValueId input : state_.node(t.node).inputs) {
        if (state_.tensor(input).numel * 2 > t.numel) stack.push_back(state_.owner(input));
      }
    }
    return found;
  };
  const std::set<int> mine = leaves(node);
  for (int anchor : group(g).anchors) {
    for (int v : leaves(state_.node(anchor))) {
      if (mine.count(v) > 0) return true;
    }
  }
  return false;
}

bool Grouper::has_room(const Node& node, int g) const {
  std::set<int> reads, seen;
  std::vector<int> stack{node.inputs[0]};
  for (int anchor : state_.groups[static_cast<size_t>(g)].anchors) stack.push_back(state_.node(anchor).inputs[0]);
  const size_t results = stack.size();
  while (!stack.empty() && reads.size() + results <= kSiblingOperands) {
    const int v = stack.back(), owner = state_.owner(v), of = state_.group(v);
    stack.pop_back();
    const bool computed =
        !state_.is_input(owner) && (of == g || (of < 0 && !state_.forced[static_cast<size_t>(owner)]));
    if (!computed) {
      reads.insert(v);
    } else if (seen.insert(owner).second) {
      for (ir::ValueId input : state_.node(state_.tensor(owner).node).inputs) stack.push_back(input);
    }
  }
  return reads.size() + results <= kSiblingOperands;
}

std::optional<Coords> Grouper::reduced_place(const Node& node, int g) {
  std::optional<Coords> x = place_of(node.inputs[0]);
  if (!x || state_.group(node.inputs[0]) != g) {
    const Group& y = group(g);
    const Tensor& t = state_.tensor(node.inputs[0]);
    if (t.numel != product(y.x_sizes)) return std::nullopt;
    x = row_major(y.x_place, y.x_sizes, t.sizes);
    if (!x) return std::nullopt;
  }
  const Coords place = kept_place(node, *x);
  const uint32_t rows = row_dims(g);
  for (const Expr& expr : place) {
    for (const Term& t : expr.view()) {
      if ((rows >> t.dim & 1) != 0) return std::nullopt;
    }
  }
  return place;
}

}  // namespace ark::planner
