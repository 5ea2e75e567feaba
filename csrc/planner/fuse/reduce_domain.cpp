// The iteration domain of a reduction: a row task where the innermost dimension is reduced, else a column task.
#include <algorithm>

#include "planner/fuse/state.h"

namespace ark::planner {

Coords kept_place(const ir::Node& node, const Coords& x_place) {
  Coords place;
  for (size_t d = 0; d < x_place.size(); ++d) {
    const bool reduced = std::find(node.attrs.dims.begin(), node.attrs.dims.end(), d) != node.attrs.dims.end();
    if (!reduced) place.push_back(x_place[d]);
    if (reduced && node.attrs.keepdim) place.push_back(Expr{});
  }
  return place;
}

void set_reduce_domain(const Tensor& t, const ir::Node& node, Group& x) {
  x.x_sizes = t.sizes;
  x.x_dims = node.attrs.dims;
  std::vector<size_t> kept, reduced;
  int64_t inner_stride = INT64_MAX, kept_numel = 1;
  bool inner_reduced = true;
  for (size_t d = 0; d < t.sizes.size(); ++d) {
    const bool is_reduced = std::find(x.x_dims.begin(), x.x_dims.end(), d) != x.x_dims.end();
    (is_reduced ? reduced : kept).push_back(d);
    if (!is_reduced) kept_numel *= t.sizes[d];
    if (t.sizes[d] > 1 && t.strides[d] > 0 && t.strides[d] <= inner_stride) {
      inner_stride = t.strides[d];
      inner_reduced = is_reduced;
    }
  }
  std::stable_sort(kept.begin(), kept.end(), [&](size_t a, size_t b) { return t.strides[a] > t.strides[b]; });
  const bool by_column = !inner_reduced && kept_numel > 1;
  x.kind = by_column ? GroupKind::kColumn : GroupKind::kRow;
  x.reduce_dims = static_cast<int>(reduced.size());
  std::vector<size_t> order = by_column ? reduced : kept;
  const std::vector<size_t>& second = by_column ? kept : reduced;
  order.insert(order.end(), second.begin(), second.end());
  x.x_place.assign(t.sizes.size(), Expr{});
  for (size_t d : order) {
    x.x_place[d] = dim_expr(static_cast<int>(x.dims.size()), t.sizes[d]);
    x.dims.push_back(t.sizes[d]);
  }
}

}  // namespace ark::planner
