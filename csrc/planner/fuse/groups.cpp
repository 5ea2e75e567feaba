// Puts every node into the group of the last group that it depends on, if it can be computed along that group's op;
// otherwise into a group of its own. Groups are numbered as they are made, and a node joins only a group whose number
// is above those of all other groups that it reads, so the order of numbers is an order of execution.
#include <algorithm>

#include "base/check.h"
#include "base/unsupported.h"
#include "planner/fuse/grouper.h"

namespace ark::planner {

using ir::Node;
using ir::OpKind;

Grouper::Grouper(State& state) : state_(state) {
  state.group_of.assign(state.tensors.size(), -1);
  state.place.assign(state.tensors.size(), std::nullopt);
  state.groups.clear();
  uneven_ = std::ranges::any_of(state.graph.nodes, [](const Node& node) { return node.attrs.splits == "uneven"; });
}

void Grouper::run() {
  for (int i = 0; i < static_cast<int>(state_.graph.nodes.size()); ++i) visit(i);
}

void Grouper::visit(int i) {
  const Node& node = state_.node(i);
  switch (node.op) {
    case OpKind::kView:
    case OpKind::kCopyTo:
    case OpKind::kFull:
    case OpKind::kIota:
      return;
    case OpKind::kMatmul:
      return matmul(i);
    case OpKind::kReduce:
      return reduce(i);
    case OpKind::kAttention:
      return attention(i);
    case OpKind::kAttentionBackward: {
      const int g = add_group(GroupKind::kAttentionBackward, i);
      for (ir::ValueId out : node.outputs) own(out, g);
      return;
    }
    case OpKind::kScatterSum:
      return own(node.outputs[0], add_group(GroupKind::kScatterSum, i));
    case OpKind::kRowSelect:
    case OpKind::kRowDraw: {
      const int g = add_group(node.op == OpKind::kRowDraw ? GroupKind::kRowDraw : GroupKind::kRowSelect, i);
      for (ir::ValueId out : node.outputs) own(out, g);
      return;
    }
    case OpKind::kExchange:
      return exchange(i);
    case OpKind::kCat:
      if (state_.in_pieces[static_cast<size_t>(node.outputs[0])])
        return own(node.outputs[0], add_group(GroupKind::kPieces, i));
      break;
    case OpKind::kIndexStore:
      if (!is_select_store(state_, node) || state_.in_place[static_cast<size_t>(node.outputs[0])])
        return index_store(i);
      break;
    default:
      break;
  }
  elementwise(node.outputs[0], last_group(node));
}

int Grouper::last_group(const Node& node) const {
  int g = -1;
  for (ir::ValueId input : node.inputs) g = std::max(g, state_.group(input));
  return g;
}

int Grouper::add_group(GroupKind kind, int anchor) {
  state_.groups.emplace_back();
  trials_.emplace_back();
  // Old groups seldom grow; their builders hold memory and are made again when needed.
  if (trials_.size() > kKeptTrials) trials_[trials_.size() - 1 - kKeptTrials].reset();
  Group& group = state_.groups.back();
  group.kind = kind;
  if (anchor >= 0) group.anchors.push_back(anchor);
  return static_cast<int>(state_.groups.size()) - 1;
}

void Grouper::own(int value, int g) {
  state_.group_of[static_cast<size_t>(value)] = g;
  state_.groups[static_cast<size_t>(g)].values.push_back(value);
}

ProgramBuilder& Grouper::trial(int g) {
  std::unique_ptr<ProgramBuilder>& builder = trials_[static_cast<size_t>(g)];
  if (!builder) {
    const Group& x = group(g);
    ProgramSpec spec;
    spec.group = g;
    spec.trial = true;
    spec.dims = x.dims;
    spec.reduce_dims = x.reduce_dims;
    if (x.kind == GroupKind::kMatmul) spec.roots = x.anchors;
    spec.kind = x.kind == GroupKind::kRow      ? ProgramKind::kRow
                : x.kind == GroupKind::kColumn ? ProgramKind::kColumn
                : x.kind == GroupKind::kMatmul ? ProgramKind::kEpilogue
                                               : ProgramKind::kPointwise;
    builder = std::make_unique<ProgramBuilder>(state_, std::move(spec));
  }
  return *builder;
}

int Grouper::try_eval(int owner, int g, const Coords& coords, bool* structural) {
  const int old = state_.group_of[static_cast<size_t>(owner)];
  state_.group_of[static_cast<size_t>(owner)] = g;
  const int result = try_value(owner, g, coords, structural);
  state_.group_of[static_cast<size_t>(owner)] = old;
  return result;
}

int Grouper::try_value(int value, int g, const Coords& coords, bool* structural) {
  for (;;) {
    try {
      return trial(g).eval(value, trial(g).lift(coords));
    } catch (const NeedStored& need) {
      const auto o = static_cast<size_t>(need.owner);
      if (state_.group_of[o] >= 0 || state_.forced[o]) {
        if (structural != nullptr) *structural = true;
        return -1;
      }
      state_.forced[o] = true;
      trials_[static_cast<size_t>(g)].reset();
    }
  }
}

void Grouper::matmul(int i) {
  const Node& node = state_.node(i);
  const int out = node.outputs[0];
  const MatmulShape shape = matmul_shape(state_, node);
  const int inputs = last_group(node);
  int g = -1;
  const bool columns = shape.way == MatmulWay::kColumns;
  if (shape.way == MatmulWay::kRows || columns) {
    for (int j = static_cast<int>(state_.groups.size()) - 1; j > inputs && g < 0; --j) {
      const Group& x = group(j);
      const bool same = x.kind == GroupKind::kMatmul && x.few_rows && x.columns == columns && x.anchors.size() < 8 &&
                        state_.node(x.anchors[0]).inputs[0] == node.inputs[0] && x.dims[2] == shape.n;
      if (same) g = j;
    }
  }
  if (g >= 0) {
    group(g).anchors.push_back(i);
    trials_[static_cast<size_t>(g)].reset();
  } else {
    g = add_group(GroupKind::kMatmul, i);
    Group& x = group(g);
    x.dims = {shape.batch, shape.m, shape.n};
    x.columns = columns;
    x.few_rows = x.columns || shape.way == MatmulWay::kRows;
    x.simple = shape.way == MatmulWay::kSimple || shape.way == MatmulWay::kFloat;
    x.x_sizes = state_.tensor(out).sizes;
    if (x.x_sizes.size() == 3) x.x_place.push_back(dim_expr(0, shape.batch));
    x.x_place.push_back(dim_expr(1, shape.m));
    x.x_place.push_back(dim_expr(2, shape.n));
  }
  Group& x = group(g);
  own(out, g);
  state_.place[static_cast<size_t>(out)] = x.x_place;
  const uint32_t root = 1u << (x.anchors.size() - 1);
  state_.value_roots[static_cast<size_t>(out)] = root;
  x.components.emplace_back(root, 0);
}

void Grouper::attention(int i) {
  const Node& node = state_.node(i);
  const int g = add_group(GroupKind::kAttention, i);
  own(node.outputs[1], g);
  if (attention_parts(state_, node) <= 1) return own(node.outputs[0], g);
  // In parts: whoever reads the output combines them, or this group does.
  const int combine = add_group(GroupKind::kPointwise, -1);
  set_pointwise_domain(combine, node.outputs[0]);
  own(node.outputs[0], combine);
  state_.place[static_cast<size_t>(node.outputs[0])] = group(combine).x_place;
}

void Grouper::index_store(int i) {
  const Node& node = state_.node(i);
  const int out = node.outputs[0], src = node.inputs[1];
  const int g = last_group(node);
  if (state_.in_place[static_cast<size_t>(out)] && g >= 0 && state_.group(src) == g && !is_opaque(group(g).kind) &&
      group(g).kind != GroupKind::kColumn) {
    const std::optional<Coords> place = place_of(src);
    if (place && indices_computable(node, *place, g)) {
      group(g).index_stores.push_back(i);
      own(out, g);
      return;
    }
  }
  const int fresh = add_group(GroupKind::kIndexStore, i);
  own(out, fresh);
}

bool Grouper::indices_computable(const Node& node, const Coords& place, int g) {
  const std::vector<int64_t>& sizes = state_.tensor(node.inputs[1]).sizes;
  try {
    ProgramBuilder& builder = trial(g);
    const Coords lifted = builder.lift(place);
    builder.eval(node.inputs[1], lifted);
    for (size_t k = 2; k < node.inputs.size(); ++k) {
      const Tensor& t = state_.tensor(node.inputs[k]);
      Coords own(t.sizes.size());
      for (size_t d = 0; d < own.size(); ++d) {
        if (t.sizes[d] != 1) own[d] = lifted[d + sizes.size() - t.sizes.size()];
      }
      builder.eval(node.inputs[k], own);
    }
  } catch (const NeedStored&) {
    return false;
  }
  return true;
}

/// Every tile has to send the same part of each box (plan.h), so that only an exchange of one value goes along with
/// what computes it; others, which send views of other places, are ops over a box.
void Grouper::exchange(int i) {
  if (push_along(i)) return;
  const Node& node = state_.node(i);
  const int g = add_group(GroupKind::kPointwise, -1);
  set_pointwise_domain(g, node.outputs[0]);
  group(g).sends_to = node.attrs.group;
  for (ir::ValueId box : node.outputs) {
    if (is_received_part(state_, box)) {
      own(box, g);
      continue;
    }
    if (try_value(sent_value(state_, box), g, group(g).x_place) < 0)
      throw NodeUnsupported(node.name, cat("exchange '", node.name, "': what it sends cannot be addressed"));
    own(box, g);
    state_.place[static_cast<size_t>(box)] = group(g).x_place;
  }
}

/// The op that computes the value stores it to the boxes too. Readers of the boxes join it never: they read what others
/// have sent (ProgramBuilder::compute).
bool Grouper::push_along(int i) {
  const Node& node = state_.node(i);
  const int x = node.inputs[0], g = state_.group(x);
  if (node.inputs.size() > 1 || uneven_ || g < 0 || is_opaque(group(g).kind)) return false;
  if (!group(g).sends_to.empty() && group(g).sends_to != node.attrs.group) return false;
  const std::optional<Coords> place = place_of(x);
  const bool alone = std::any_of(node.outputs.begin(), node.outputs.end(),
                                 [&](ir::ValueId box) { return state_.no_claim[static_cast<size_t>(box)]; });
  const int reg = !alone && place ? try_value(x, g, *place) : -1;
  if (reg < 0 || !fits(reg, *place, g)) return false;
  group(g).sends_to = node.attrs.group;
  for (ir::ValueId box : node.outputs) {
    own(box, g);
    state_.place[static_cast<size_t>(box)] = place;
    state_.value_roots[static_cast<size_t>(box)] = state_.value_roots[static_cast<size_t>(state_.owner(x))];
  }
  return true;
}

void make_groups(State& state) {
  state.value_roots.assign(state.tensors.size(), 0);
  Grouper(state).run();
}

}  // namespace ark::planner
