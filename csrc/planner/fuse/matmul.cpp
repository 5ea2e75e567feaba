// How matrix products and attentions are computed, and from where their operands are read.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "planner/fuse/product_cost.h"
#include "planner/fuse/state.h"

namespace ark::planner {
namespace {

using ir::Node;

constexpr int64_t kMaxActivation = 16384;  // elements of kMatmulRows' activation: one row of 16 bits, fp32
constexpr int64_t kAlignmentBytes = 16;    // TMA and bulk copies
constexpr int64_t kMinTileK = 8;

bool aligned(int64_t elements, DType dtype) { return elements * size_bytes(dtype) % kAlignmentBytes == 0; }

/// One unit stride, the others multiples of 16 bytes: what TMA reads.
bool tile_readable(const StridedSource& x, DType dtype, const int64_t (&sizes)[3]) {
  const bool unit_inner = x.strides[2] == 1, unit_outer = x.strides[1] == 1;
  if (!unit_inner && !unit_outer) return false;
  const int64_t other = unit_inner ? x.strides[1] : x.strides[2];
  if (other <= 0 || !aligned(other, dtype) || !aligned(x.offset, dtype)) return false;
  return sizes[0] == 1 || (x.strides[0] > 0 && aligned(x.strides[0], dtype));
}

/// Is the owner a copy whose source may be read in its place?
bool is_seen_through(const State& state, const Tensor& owner) {
  return is_copy_node(state, owner.node) && !state.forced[static_cast<size_t>(owner.owner)];
}

/// Dimensions of size 1 have stride 0.
StridedSource moving_source(const Tensor& t) {
  StridedSource source{t.owner, t.strides, t.offset};
  for (size_t d = 0; d < t.sizes.size(); ++d)
    if (t.sizes[d] <= 1) source.strides[d] = 0;
  return source;
}

std::optional<StridedSource> trace(const State& state, int value) {
  const std::vector<int64_t>& sizes = state.tensor(value).sizes;
  if (sizes.size() <= kMaxTerms && !is_seen_through(state, state.tensor(state.owner(value))))
    return moving_source(state.tensor(value));
  Coords coords;
  coords.reserve(sizes.size());
  for (size_t d = 0; d < sizes.size(); ++d) coords.push_back(dim_expr(static_cast<int>(d), sizes[d]));
  int current = value;
  StridedSource source;
  for (;;) {
    const Tensor& t = state.tensor(current);
    const std::optional<Expr> linear = linearize(coords, t.strides, t.offset);
    if (!linear) return std::nullopt;
    source.owner = t.owner;
    source.offset = linear->constant;
    source.strides.assign(sizes.size(), 0);
    bool pure = true;
    for (const Term& term : linear->view()) {
      pure &= term.pure();
      source.strides[static_cast<size_t>(term.dim)] += term.coef;
    }
    const Tensor& owner = state.tensor(t.owner);
    if (!is_seen_through(state, owner)) return pure ? std::optional(source) : std::nullopt;
    if (t.owner != current) {
      const Coords* map = view_map(state, current);
      if (map == nullptr) return pure ? std::optional(source) : std::nullopt;
      Coords inner;
      inner.reserve(map->size());
      for (const Expr& expr : *map) {
        std::optional<Expr> c = substitute(expr, coords);
        if (!c) return std::nullopt;
        inner.push_back(*c);
      }
      coords = std::move(inner);
    }
    const int input = state.node(owner.node).inputs[0];
    if (state.tensor(input).sizes != owner.sizes)
      return pure ? std::optional(source) : std::nullopt;  // broadcasting copy
    current = input;
  }
}

/// Few rows times a weight [n][k] whose rows are whole vectors.
bool is_few(const MatmulShape& shape) {
  const StridedSource& b = shape.b;
  if (b.strides[1] != 1 || b.strides[2] <= 0 || !aligned(b.strides[2], shape.dtype) ||
      !aligned(b.offset, shape.dtype) || !aligned(shape.k, shape.dtype))
    return false;
  // Code for several fp32 rows has room for all of them (plan/few_rows_form.h).
  if (shape.dtype == DType::kF32)
    return shape.m <= abi::kMostFewFloatRows && (shape.m == 1 ? 1 : abi::kMostFewFloatRows) * shape.k <= kMaxActivation;
  const bool half = shape.dtype == DType::kBF16 || shape.dtype == DType::kF16;
  if (!half || shape.m > abi::kMostFewRows) return false;
  return shape.m == 1 ? shape.k <= kMaxActivation
                      : abi::strip_windows(static_cast<int>(shape.m), static_cast<int>(shape.k)) <= abi::kMostWindows;
}

/// Few rows times a weight [k][n] that TMA reads by columns. Every worker reads the activation: not across its rows, as
/// of the gradient of few outputs' weights.
bool is_few_columns(const MatmulShape& shape) {
  const StridedSource& b = shape.b;
  if (shape.a.strides[2] != 1) return false;
  const bool half = shape.dtype == DType::kBF16 || shape.dtype == DType::kF16;
  if (!half || b.strides[2] != 1 || b.strides[1] <= 0 || !aligned(b.strides[1], shape.dtype) ||
      !aligned(b.offset, shape.dtype) || !aligned(shape.k, shape.dtype) || shape.m > abi::kMostFewRows)
    return false;
  if (shape.m == 1) return shape.k <= abi::kMostColumnsOneRowK;
  return abi::column_windows(static_cast<int>(shape.m), static_cast<int>(shape.k)) <= abi::kMostWindows;
}

/// Whether tiles, by their costs, do such a product sooner than the family for few rows.
bool is_sooner_in_tiles(const State& state, const MatmulShape& shape) {
  if (size_bytes(shape.dtype) != 2 || shape.k < kMinTileK) return false;
  const FewProduct product{shape.m, shape.k, shape.n, !is_few(shape)};
  return tiles_seconds(product, state.machine) < few_rows_seconds(product, state.machine);
}

}  // namespace

StridedSource direct_source(const State& state, int value) {
  const Tensor& t = state.tensor(value);
  return {t.owner, t.strides, t.offset};
}

StridedSource strided_source(const State& state, int value) {
  if (std::optional<StridedSource> source = trace(state, value)) return std::move(*source);
  return direct_source(state, value);
}

MatmulShape matmul_shape(const State& state, const Node& node) {
  MatmulShape shape;
  const Tensor &a = state.tensor(node.inputs[0]), &b = state.tensor(node.inputs[1]);
  const size_t rank = a.sizes.size();
  shape.batch = rank == 3 ? a.sizes[0] : 1;
  shape.m = a.sizes[rank - 2];
  shape.k = a.sizes[rank - 1];
  shape.n = b.sizes[rank - 1];
  shape.dtype = a.dtype;
  auto source = [&](int value, bool direct) {
    StridedSource x = direct ? direct_source(state, value) : strided_source(state, value);
    if (rank == 2) x.strides.insert(x.strides.begin(), 0);
    return x;
  };
  shape.a = source(node.inputs[0], false);
  shape.b = source(node.inputs[1], false);
  const bool half = shape.dtype == DType::kBF16 || shape.dtype == DType::kF16;
  const bool out_plain = compute_type(state.tensor(node.outputs[0]).dtype) == DType::kF32;
  if (!state.tensor_cores || !out_plain || shape.k == 0) return shape;
  const int64_t a_sizes[3] = {shape.batch, shape.m, shape.k}, b_sizes[3] = {shape.batch, shape.k, shape.n};
  const auto read_by_tiles = [&](const StridedSource& x, int value, const int64_t(&sizes)[3]) {
    return tile_readable(x, shape.dtype, sizes) || tile_readable(source(value, true), shape.dtype, sizes);
  };
  const bool few_rows = state.few_rows && rank == 2 && (is_few(shape) || is_few_columns(shape)) &&
                        !(is_sooner_in_tiles(state, shape) && read_by_tiles(shape.a, node.inputs[0], a_sizes) &&
                          read_by_tiles(shape.b, node.inputs[1], b_sizes));
  if (few_rows) {
    shape.way = is_few(shape) ? MatmulWay::kRows : MatmulWay::kColumns;
    return shape;
  }
  if ((!half && shape.dtype != DType::kF32) || shape.k < kMinTileK) return shape;
  // Rather a copy that TMA reads than a view that it does not.
  const StridedSource views[2] = {shape.a, shape.b};
  if (!tile_readable(shape.a, shape.dtype, a_sizes)) shape.a = source(node.inputs[0], true);
  if (!tile_readable(shape.b, shape.dtype, b_sizes)) shape.b = source(node.inputs[1], true);
  if (tile_readable(shape.a, shape.dtype, a_sizes) && tile_readable(shape.b, shape.dtype, b_sizes)) {
    shape.way = half ? MatmulWay::kTile : MatmulWay::kFloat;
  } else if (!half) {  // kMatmulSimple reads views too
    shape.a = views[0], shape.b = views[1];
  }
  return shape;
}

AttentionWay attention_way(const State& state, const Node& node) {
  const Tensor &q = state.tensor(node.inputs[0]), &k = state.tensor(node.inputs[1]), &v = state.tensor(node.inputs[2]);
  const bool half = q.dtype == DType::kBF16 || q.dtype == DType::kF16;
  const int64_t d = q.sizes[3], dv = v.sizes[3], group = q.sizes[1] / k.sizes[1];
  const bool logsumexp =
      !state.users[static_cast<size_t>(node.outputs[1])].empty() || state.tensor(node.outputs[1]).output;
  const bool wide_mask = node.attrs.has_mask && size_bytes(state.tensor(node.inputs[3]).dtype) > 4;
  if (!state.tensor_cores || !half || wide_mask) return AttentionWay::kSimple;
  constexpr int64_t kDecodeRows = 16, kDecodeKeys = 64;
  auto readable = [&](int value) {
    const StridedSource x = strided_source(state, value);
    const Tensor& t = state.tensor(value);
    if (x.strides[3] != 1 || !aligned(x.offset, t.dtype)) return false;
    for (size_t i = 0; i < 3; ++i) {
      if (t.sizes[i] > 1 && (x.strides[i] <= 0 || !aligned(x.strides[i], t.dtype))) return false;
    }
    return true;
  };
  if (!readable(node.inputs[0]) || !readable(node.inputs[1]) || !readable(node.inputs[2])) return AttentionWay::kSimple;
  const bool sizes = d == dv && abi::is_decode_dim(d), padded = d == dv && d % 8 == 0 && d <= abi::kMostHeadDim;
  const bool keys = k.sizes[2] >= kDecodeKeys || q.sizes[2] == 1;  // a short cache needs no kernel of its own
  if (sizes && q.sizes[2] * group <= kDecodeRows && keys && !logsumexp) return AttentionWay::kDecode;
  return padded ? AttentionWay::kForward : AttentionWay::kSimple;
}

int64_t attention_parts(const State& state, const Node& node) {
  if (attention_way(state, node) != AttentionWay::kDecode) return 1;
  constexpr int64_t kMostParts = 16;
  const Tensor& k = state.tensor(node.inputs[1]);
  const int64_t room = std::max<int64_t>(1, state.machine.num_workers / std::max<int64_t>(1, k.sizes[0] * k.sizes[1]));
  // Two or three parts of a cache that is short gain less than the op that combines them costs.
  constexpr int64_t kWorthwhile = 4, kShortCache = 2048;
  if (room < kWorthwhile && k.sizes[2] <= kShortCache) return 1;
  const int64_t each = positions_per_part(k.sizes[3]);
  return std::min({room, kMostParts, (k.sizes[2] + each - 1) / each});
}

}  // namespace ark::planner
