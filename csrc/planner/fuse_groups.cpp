// Puts every node into the group of the last group that it depends on, if it can be computed along that group's op;
// otherwise into a group of its own. Groups are numbered as they are made, and a node joins only a group whose number
// is above those of all other groups that it reads, so the order of numbers is an order of execution.
#include <algorithm>

#include "base/check.h"
#include "planner/program_builder.h"

namespace ark::planner {
namespace {

using ir::Node;
using ir::OpKind;

class Grouper {
 public:
  explicit Grouper(State& state) : state_(state) {
    state.group_of.assign(state.tensors.size(), -1);
    state.place.assign(state.tensors.size(), std::nullopt);
    state.groups.clear();
  }

  void run() {
    for (int i = 0; i < static_cast<int>(state_.graph.nodes.size()); ++i) visit(i);
  }

 private:
  void visit(int i) {
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
      case OpKind::kIndexStore:
        if (!is_select_store(state_, node) || state_.in_place[static_cast<size_t>(node.outputs[0])])
          return index_store(i);
        break;
      default:
        break;
    }
    elementwise(node.outputs[0], last_group(node));
  }

  int last_group(const Node& node) const {
    int g = -1;
    for (ir::ValueId input : node.inputs) g = std::max(g, state_.group(input));
    return g;
  }

  int add_group(GroupKind kind, int anchor) {
    state_.groups.emplace_back();
    trials_.emplace_back();
    // Old groups seldom grow; their builders hold memory and are made again when needed.
    if (trials_.size() > kKeptTrials) trials_[trials_.size() - 1 - kKeptTrials].reset();
    Group& group = state_.groups.back();
    group.kind = kind;
    if (anchor >= 0) group.anchors.push_back(anchor);
    return static_cast<int>(state_.groups.size()) - 1;
  }

  void own(int value, int g) {
    state_.group_of[static_cast<size_t>(value)] = g;
    state_.groups[static_cast<size_t>(g)].values.push_back(value);
  }

  Group& group(int g) { return state_.groups[static_cast<size_t>(g)]; }

  /// The builder in which the group's values are tried out. Made anew when the group's roots change.
  ProgramBuilder& trial(int g) {
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

  /// Tries to compute the owner at coords in the group; free values that turn out to need memory get it. Register or
  /// -1.
  int try_eval(int owner, int g, const Coords& coords, bool* structural = nullptr) {
    const int old = state_.group_of[static_cast<size_t>(owner)];
    state_.group_of[static_cast<size_t>(owner)] = g;
    int result = -1;
    for (;;) {
      try {
        result = trial(g).eval(owner, trial(g).lift(coords));
        break;
      } catch (const NeedStored& need) {
        const auto o = static_cast<size_t>(need.owner);
        if (need.owner == owner || state_.group_of[o] >= 0 || state_.forced[o]) {
          if (structural != nullptr) *structural = true;
          break;
        }
        state_.forced[o] = true;
        trials_[static_cast<size_t>(g)].reset();
      }
    }
    state_.group_of[static_cast<size_t>(owner)] = old;
    return result;
  }

  // ---- places ----

  /// Coordinates of a value (owner or bijective view) over its group's domain.
  std::optional<Coords> place_of(int value) const {
    const Tensor& t = state_.tensor(value);
    const std::optional<Coords>& place = state_.place[static_cast<size_t>(t.owner)];
    if (!place || t.owner == value) return place;
    const Tensor& owner = state_.tensor(t.owner);
    if (t.numel != owner.numel || t.offset != 0) return std::nullopt;
    const std::optional<Expr> linear = linearize(*place, owner.strides, 0);
    if (!linear) return std::nullopt;
    return delinearize(*linear, t.sizes, t.strides);
  }

  std::optional<Coords> row_major(const Coords& coords, const std::vector<int64_t>& sizes,
                                  const std::vector<int64_t>& to) const {
    const std::optional<Expr> linear = linearize(coords, contiguous_strides(sizes), 0);
    if (!linear) return std::nullopt;
    return delinearize(*linear, to, contiguous_strides(to));
  }

  std::optional<Coords> find_place(int owner, const Node& node, int g) {
    const Tensor& t = state_.tensor(owner);
    const Group& x = group(g);
    for (ir::ValueId input : node.inputs) {
      if (state_.group(input) != g || state_.tensor(input).sizes != t.sizes) continue;
      if (std::optional<Coords> place = place_of(input)) return place;
    }
    if (t.numel == product(x.x_sizes)) return row_major(x.x_place, x.x_sizes, t.sizes);
    if (x.reduce_dims == 0) return std::nullopt;
    Coords kept;
    std::vector<int64_t> kept_sizes;
    for (size_t d = 0; d < x.x_sizes.size(); ++d) {
      if (std::find(x.x_dims.begin(), x.x_dims.end(), d) != x.x_dims.end()) continue;
      kept.push_back(x.x_place[d]);
      kept_sizes.push_back(x.x_sizes[d]);
    }
    if (t.numel == product(kept_sizes)) return row_major(kept, kept_sizes, t.sizes);
    return std::nullopt;
  }

  uint32_t row_dims(int g) {
    const Group& x = group(g);
    uint32_t mask = 0;
    for (int d = 0; d < static_cast<int>(x.dims.size()); ++d) {
      const bool reduced =
          x.kind == GroupKind::kColumn ? d < x.reduce_dims : d >= static_cast<int>(x.dims.size()) - x.reduce_dims;
      if (reduced) mask |= 1u << d;
    }
    return mask;
  }

  // ---- pointwise and alike ----

  void elementwise(int owner, int g) {
    if (g < 0) return;  // free
    if (claim(owner, g)) return own(owner, g);
    const Tensor& t = state_.tensor(owner);
    const int fresh = add_group(GroupKind::kPointwise, -1);
    set_pointwise_domain(fresh, owner);
    bool structural = false;
    if (try_eval(owner, fresh, group(fresh).x_place, &structural) < 0) {
      throw UnsupportedError(cat("node '", state_.node(t.node).name, "': its operands cannot be addressed together"));
    }
    own(owner, fresh);
    state_.place[static_cast<size_t>(owner)] = group(fresh).x_place;
  }

  void set_pointwise_domain(int g, int owner) {
    const Tensor& t = state_.tensor(owner);
    Group& x = group(g);
    std::vector<size_t> order(t.sizes.size());
    for (size_t d = 0; d < order.size(); ++d) order[d] = d;
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return t.strides[a] > t.strides[b]; });
    x.x_sizes = t.sizes;
    x.x_place.assign(t.sizes.size(), Expr{});
    for (size_t d : order) {
      x.x_place[d] = dim_expr(static_cast<int>(x.dims.size()), t.sizes[d]);
      x.dims.push_back(t.sizes[d]);
    }
  }

  bool claim(int owner, int g) {
    const auto o = static_cast<size_t>(owner);
    if (state_.no_claim[o] || is_opaque(group(g).kind)) return false;
    const std::optional<Coords> place = find_place(owner, state_.node(state_.tensor(owner).node), g);
    const int reg = place ? try_eval(owner, g, *place) : -1;
    if (reg < 0 || !fits(reg, *place, g)) return claim_part(owner, g);
    state_.place[o] = place;
    if (group(g).kind == GroupKind::kMatmul)
      state_.value_roots[o] = roots_of(state_, owner, g, trial(g).reg(reg).roots);
    adopt(owner, g);
    return true;
  }

  /// A value along a matmul that is not one per element of its domain (half of rotated columns): whoever needs it
  /// computes it.
  bool claim_part(int owner, int g) const {
    const Group& x = state_.groups[static_cast<size_t>(g)];
    return x.kind == GroupKind::kMatmul && !state_.forced[static_cast<size_t>(owner)] &&
           state_.tensor(owner).numel <= product(x.x_sizes);
  }

  /// Values that depend on no group but have to be in memory (dropout masks) are computed and stored by the group that
  /// reads them first.
  void adopt(int owner, int g) {
    const Group& x = group(g);
    const Tensor& t = state_.tensor(owner);
    if (x.kind == GroupKind::kColumn || t.numel != product(x.dims)) return;
    for (ir::ValueId input : state_.node(t.node).inputs) {
      for (int v = input; v >= 0;) {
        const Tensor& u = state_.tensor(v);
        if (u.owner != v || u.sizes != t.sizes || u.node < 0 || state_.group_of[static_cast<size_t>(v)] >= 0) break;
        const Node& node = state_.node(u.node);
        if (node.op != OpKind::kPointwise && node.op != OpKind::kRand) break;
        if (!state_.forced[static_cast<size_t>(v)]) {
          v = node.inputs[0];
          continue;
        }
        if (!read_only_by(v, g, t.node, 4)) break;
        own(v, g);
        state_.place[static_cast<size_t>(v)] = state_.place[static_cast<size_t>(owner)];
        if (x.kind == GroupKind::kMatmul)
          state_.value_roots[static_cast<size_t>(v)] = state_.value_roots[static_cast<size_t>(owner)];
        trials_[static_cast<size_t>(g)].reset();
        break;
      }
    }
  }

  /// Do all nodes up to `current` that read the value belong to group g (perhaps through values that belong to none)?
  bool read_only_by(int owner, int g, int current, int depth) const {
    for (int user : state_.users[static_cast<size_t>(owner)]) {
      if (user >= current) continue;
      if (state_.node(user).op == OpKind::kMatmul) return false;  // reads memory before its epilogue could write it
      for (ir::ValueId out : state_.node(user).outputs) {
        const int og = state_.group(out);
        if (og == g) continue;
        const bool passes = og < 0 && state_.owner(out) == out && !state_.forced[static_cast<size_t>(out)] && depth > 0;
        if (!passes || !read_only_by(out, g, current, depth - 1)) return false;
      }
    }
    return true;
  }

  /// May a value in this register be stored at this place by the group's op?
  bool fits(int reg, const Coords& place, int g) {
    Group& x = group(g);
    const ProgramBuilder::Reg& meta = trial(g).reg(reg);
    const uint32_t rows = row_dims(g);
    uint32_t placed = 0;
    for (const Expr& expr : place) {
      for (const Term& t : expr.view()) placed |= 1u << t.dim;
    }
    if (x.kind == GroupKind::kColumn) return ((meta.dims | placed) & rows) == 0;
    if (x.kind == GroupKind::kRow) return (meta.dims & rows & ~placed) == 0;
    if (x.kind != GroupKind::kMatmul) return true;
    return joins_roots(x, meta);
  }

  /// A value may depend on two matmuls of a group (a gated pair) or on the columns at a distance, not on both.
  bool joins_roots(Group& x, const ProgramBuilder::Reg& meta) {
    if (meta.pair < 0) return false;
    const int64_t most = x.few_rows ? 4096 : x.simple ? 32 : 64;
    if (meta.pair > most) return false;
    uint32_t all = meta.roots;
    int64_t pair = meta.pair;
    for (bool grown = true; grown;) {
      grown = false;
      for (const auto& [roots, distance] : x.components) {
        if ((roots & all) == 0) continue;
        if (pair != 0 && distance != 0 && pair != distance) return false;
        pair = std::max(pair, distance);
        grown |= (roots | all) != all;
        all |= roots;
      }
    }
    const int count = __builtin_popcount(all);
    if (count > 2 || (count == 2 && pair != 0)) return false;
    std::erase_if(x.components, [&](const auto& c) { return (c.first & all) != 0; });
    x.components.emplace_back(all, pair);
    return true;
  }

  // ---- matmul ----

  void matmul(int i) {
    const Node& node = state_.node(i);
    const int out = node.outputs[0];
    const MatmulShape shape = matmul_shape(state_, node);
    const int inputs = last_group(node);
    int g = -1;
    if (shape.way == MatmulWay::kRows) {
      for (int j = static_cast<int>(state_.groups.size()) - 1; j > inputs && g < 0; --j) {
        const Group& x = group(j);
        const bool same = x.kind == GroupKind::kMatmul && x.few_rows && x.anchors.size() < 8 &&
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
      x.few_rows = shape.way == MatmulWay::kRows;
      x.simple = shape.way == MatmulWay::kSimple;
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

  // ---- reductions ----

  void reduce(int i) {
    const Node& node = state_.node(i);
    const int out = node.outputs[0], x = node.inputs[0];
    const int g = last_group(node);
    const bool alone = state_.no_claim[static_cast<size_t>(out)];
    if (!alone && g >= 0 && group(g).kind == GroupKind::kRow) {
      if (const std::optional<Coords> place = reduced_place(node, g)) {
        if (try_eval(out, g, *place) >= 0) return join(out, i, g, *place);
      }
    }
    const std::vector<int64_t>& sizes = state_.tensor(x).sizes;
    for (int j = static_cast<int>(state_.groups.size()) - 1;
         !alone && j > g && j + kSiblingWindow > static_cast<int>(state_.groups.size()); --j) {
      const Group& y = group(j);
      if ((y.kind != GroupKind::kRow && y.kind != GroupKind::kColumn) || y.x_sizes != sizes ||
          y.x_dims != node.attrs.dims)
        continue;
      const int producer = state_.group(x);
      const bool same_producer = producer >= 0 && producer == state_.group(state_.node(y.anchors[0]).inputs[0]);
      if (!same_producer && !shares_input(node, j)) continue;
      const Coords place = kept_place(node, y.x_place);
      if (try_eval(out, j, place) >= 0) return join(out, i, j, place);
    }
    const int fresh = add_group(GroupKind::kRow, i);
    set_reduce_domain(state_.tensor(x), node, group(fresh));
    const Coords place = kept_place(node, group(fresh).x_place);
    if (try_eval(out, fresh, place) < 0) throw UnsupportedError(cat("reduction '", node.name, "' cannot be addressed"));
    own(out, fresh);
    state_.place[static_cast<size_t>(out)] = place;
  }

  static constexpr size_t kKeptTrials = 12;
  static constexpr int kSiblingWindow = 24;  // how far back reductions of the same values are looked for

  void join(int out, int node, int g, const Coords& place) {
    group(g).anchors.push_back(node);
    own(out, g);
    state_.place[static_cast<size_t>(out)] = place;
  }

  bool shares_input(const Node& node, int g) {
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

  /// Place of a reduction over the rows of the group that computes its operand.
  std::optional<Coords> reduced_place(const Node& node, int g) {
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

  // ---- attention and index stores ----

  void attention(int i) {
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

  void index_store(int i) {
    const Node& node = state_.node(i);
    const int out = node.outputs[0], src = node.inputs[1];
    const int g = last_group(node);
    if (state_.in_place[static_cast<size_t>(out)] && g >= 0 && state_.group(src) == g && !is_opaque(group(g).kind) &&
        group(g).kind != GroupKind::kColumn && group(g).reduce_dims == 0) {
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

  bool indices_computable(const Node& node, const Coords& place, int g) {
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

  State& state_;
  std::vector<std::unique_ptr<ProgramBuilder>> trials_;
};

}  // namespace

void make_groups(State& state) {
  state.value_roots.assign(state.tensors.size(), 0);
  Grouper(state).run();
}

}  // namespace ark::planner
