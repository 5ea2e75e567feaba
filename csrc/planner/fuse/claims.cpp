// Which values a group computes along its op: where they are in its domain, and what its loop can hold.
#include <algorithm>

#include "base/check.h"
#include "base/unsupported.h"
#include "planner/fuse/grouper.h"

namespace ark::planner {

using ir::Node;
using ir::OpKind;

std::optional<Coords> Grouper::place_of(int value) const {
  const Tensor& t = state_.tensor(value);
  const std::optional<Coords>& place = state_.place[static_cast<size_t>(t.owner)];
  if (!place || t.owner == value) return place;
  const Tensor& owner = state_.tensor(t.owner);
  if (t.numel != owner.numel || t.offset != 0) return std::nullopt;
  const std::optional<Expr> linear = linearize(*place, owner.strides, 0);
  if (!linear) return std::nullopt;
  return delinearize(*linear, t.sizes, t.strides);
}

std::optional<Coords> Grouper::row_major(const Coords& coords, const std::vector<int64_t>& sizes,
                                         const std::vector<int64_t>& to) const {
  const std::optional<Expr> linear = linearize(coords, contiguous_strides(sizes), 0);
  if (!linear) return std::nullopt;
  return delinearize(*linear, to, contiguous_strides(to));
}

/// Place of a tensor of these sizes that has, in one dimension, more of what `part` is a slice of, or is computed from.
std::optional<Coords> Grouper::whole_place(int part, const std::vector<int64_t>& sizes, int g, int depth) const {
  const Tensor& t = state_.tensor(part);
  const Tensor& owner = state_.tensor(t.owner);
  const std::optional<Coords>& place = state_.place[static_cast<size_t>(t.owner)];
  if (place && state_.group_of[static_cast<size_t>(t.owner)] == g) {
    if (owner.numel != product(sizes) || t.strides.size() != sizes.size()) return std::nullopt;
    const std::optional<Expr> linear = linearize(*place, owner.strides, 0);
    return linear ? delinearize(*linear, sizes, t.strides) : std::nullopt;
  }
  if (t.owner != part || t.node < 0 || state_.node(t.node).op != OpKind::kPointwise || depth == 0) return std::nullopt;
  for (ir::ValueId input : state_.node(t.node).inputs) {
    if (state_.tensor(input).sizes != t.sizes) continue;
    if (std::optional<Coords> found = whole_place(input, sizes, g, depth - 1)) return found;
  }
  return std::nullopt;
}

std::optional<Coords> Grouper::find_place(int owner, const Node& node, int g) {
  const Tensor& t = state_.tensor(owner);
  const Group& x = group(g);
  for (ir::ValueId input : node.inputs) {
    if (state_.group(input) != g || state_.tensor(input).sizes != t.sizes) continue;
    if (std::optional<Coords> place = place_of(input)) return place;
  }
  if (node.op == OpKind::kCat) {
    for (ir::ValueId input : node.inputs)
      if (std::optional<Coords> place = whole_place(input, t.sizes, g, 4)) return place;
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

uint32_t Grouper::row_dims(int g) {
  const Group& x = group(g);
  uint32_t mask = 0;
  for (int d = 0; d < static_cast<int>(x.dims.size()); ++d) {
    const bool reduced =
        x.kind == GroupKind::kColumn ? d < x.reduce_dims : d >= static_cast<int>(x.dims.size()) - x.reduce_dims;
    if (reduced) mask |= 1u << d;
  }
  return mask;
}

bool Grouper::has_tiles(int g) {
  const uint32_t rows = row_dims(g);
  const std::vector<int64_t>& dims = group(g).dims;
  for (size_t d = 0; d < dims.size(); ++d)
    if ((rows >> d & 1) == 0 && dims[d] == 0) return false;
  return true;
}

void Grouper::elementwise(int owner, int g) {
  if (g < 0) return;  // free
  if (claim(owner, g)) return own(owner, g);
  const Tensor& t = state_.tensor(owner);
  const int fresh = add_group(GroupKind::kPointwise, -1);
  set_pointwise_domain(fresh, owner);
  bool structural = false;
  if (try_eval(owner, fresh, group(fresh).x_place, &structural) < 0) {
    const std::string& name = state_.node(t.node).name;
    throw NodeUnsupported(name, cat("node '", name, "': its operands cannot be addressed together"));
  }
  own(owner, fresh);
  state_.place[static_cast<size_t>(owner)] = group(fresh).x_place;
}

void Grouper::set_pointwise_domain(int g, int owner) {
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

bool Grouper::claim(int owner, int g) {
  const auto o = static_cast<size_t>(owner);
  if (state_.no_claim[o] || is_opaque(group(g).kind)) return false;
  // Places drop dimensions of size 0 as they drop those of 1: they would name an element.
  if (state_.tensor(owner).numel == 0 && has_tiles(g)) return claim_part(owner, g);
  const std::optional<Coords> place = find_place(owner, state_.node(state_.tensor(owner).node), g);
  const int reg = place ? try_eval(owner, g, *place) : -1;
  if (reg < 0 || !fits(reg, *place, g)) return claim_part(owner, g);
  state_.place[o] = place;
  if (group(g).kind == GroupKind::kMatmul) state_.value_roots[o] = roots_of(state_, owner, g, trial(g).reg(reg).roots);
  adopt(owner, g);
  return true;
}

bool Grouper::claim_part(int owner, int g) const {
  const Group& x = state_.groups[static_cast<size_t>(g)];
  for (ir::ValueId input : state_.node(state_.tensor(owner).node).inputs)  // what others have sent is not along the op
    if (is_box(state_, state_.owner(input)) && state_.group(input) == g) return false;
  if (state_.forced[static_cast<size_t>(owner)]) return false;
  if (x.kind == GroupKind::kRow) return joins_rows(owner, product(x.x_sizes), 8);
  return x.kind == GroupKind::kMatmul && state_.tensor(owner).numel <= product(x.x_sizes);
}

/// Do all that read the value put it into whole rows of so many elements, as the halves of rotated heads are?
bool Grouper::joins_rows(int owner, int64_t numel, int depth) const {
  const Tensor& t = state_.tensor(owner);
  const std::vector<int>& users = state_.users[static_cast<size_t>(owner)];
  if (t.numel >= numel || t.numel == 0 || users.empty() || depth == 0) return false;
  return std::ranges::all_of(users, [&](int i) {
    const Node& node = state_.node(i);
    const Tensor& out = state_.tensor(node.outputs[0]);
    if (node.op == OpKind::kCat && out.numel == numel) return true;
    const bool goes_on = node.op == OpKind::kCat || (node.op == OpKind::kPointwise && out.numel == t.numel);
    return goes_on && joins_rows(node.outputs[0], numel, depth - 1);
  });
}

void Grouper::adopt(int owner, int g) {
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

bool Grouper::read_only_by(int owner, int g, int current, int depth) const {
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

bool Grouper::fits(int reg, const Coords& place, int g) {
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

namespace {

/// Is the k of a few-row product walked in several windows? Of weights [k][n], code for two lanes has no registers left
/// for that.
bool has_windows(const State& state, const Group& x) {
  const MatmulShape shape = matmul_shape(state, state.node(x.anchors[0]));
  return abi::column_windows(static_cast<int>(shape.m), static_cast<int>(shape.k)) > 1;
}

}  // namespace

bool Grouper::joins_roots(Group& x, const ProgramBuilder::Reg& meta) {
  if (meta.pair < 0) return false;
  const int64_t most = x.few_rows ? 4096 : x.simple ? 32 : 64;
  if (meta.pair > most) return false;
  if (x.columns && meta.pair % abi::kLeastColumns != 0) return false;  // the columns of a strip lie together
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
  if (x.columns && (count == 2 || pair != 0) && has_windows(state_, x)) return false;
  std::erase_if(x.components, [&](const auto& c) { return (c.first & all) != 0; });
  x.components.emplace_back(all, pair);
  return true;
}

}  // namespace ark::planner
