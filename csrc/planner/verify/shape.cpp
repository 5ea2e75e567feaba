// Tiles cut the coordinates of an op into parts that do not meet. Where every coordinate has an element of its own,
// what two tiles write cannot meet either, and no tile need be looked at.
#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "planner/verify/uses.h"

namespace ark::planner {
namespace {

using abi::TaskKind;

struct Dim {
  int64_t count, stride;
};
using Dims = std::vector<Dim>;

int64_t product(const abi::OpRecord& r, int first, int end) {
  int64_t n = 1;
  for (int d = first; d < end; ++d) n *= r.size[d];
  return n;
}

std::optional<Dims> program_dims(const abi::OpRecord& r, const abi::Operand& x, const OperandUse& how) {
  const abi::ProgramParams& p = r.params.program;
  Dims dims;
  int first = 0, end = p.num_dims;
  if (r.kind == TaskKind::kRow && how.once) end -= p.reduce_dims;
  if (r.kind == TaskKind::kColumn) {
    const int64_t kept = product(r, p.reduce_dims, p.num_dims), reduced = product(r, 0, p.reduce_dims);
    const bool split = p.split > 0 && p.split < reduced;
    if (how.once) {
      first = p.reduce_dims;
      const int64_t blocks = (kept + p.tile - 1) / p.tile;
      if (blocks > 0 && tiles_of(r) > blocks) dims.push_back({tiles_of(r) / blocks, x.stride[0]});
    } else if (split) {
      return std::nullopt;
    }
  }
  for (int d = first; d < end; ++d) dims.push_back({r.size[d], x.stride[d]});
  return dims;
}

/// A segment's own coordinates; none where several segments share the operand.
std::optional<Dims> rows_dims(const plan::Plan& plan, const abi::OpRecord& r, const abi::Operand& x, int operand) {
  const abi::MatmulRowsParams& p = r.params.rows;
  std::optional<Dims> dims;
  for (int s = 0; s < p.num_segments; ++s) {
    const abi::Segment& g = p.segment[s];
    const int end = g.first_operand + plan.programs[static_cast<size_t>(g.program)].num_operands;
    if (operand < g.first_operand || operand >= end) continue;
    if (dims) return std::nullopt;
    dims = Dims{{p.m, x.stride[1]}, {int64_t{g.num_units} * (p.gated ? 1 : p.lanes), x.stride[2]}};
  }
  return dims;
}

std::optional<Dims> attention_dims(const abi::OpRecord& r, const abi::Operand& x, int operand) {
  const abi::AttentionParams& p = r.params.attention;
  const bool by_keys = r.kind == TaskKind::kAttentionBackward;
  const char letter = std::string_view(attention_operands(r.kind))[static_cast<size_t>(operand)];
  const Dim batch{p.batch, x.stride[0]};
  if (by_keys && (letter == 'k' || letter == 'v'))
    return Dims{batch,
                {p.kv_heads, x.stride[1]},
                {p.keys, x.stride[2]},
                {letter == 'k' ? p.head_dim : p.value_dim, x.stride[3]}};
  if (by_keys || (letter != 'q' && letter != 'o' && letter != 'r')) return std::nullopt;
  Dims dims{batch, {p.heads, x.stride[1]}, {p.queries, x.stride[2]}};
  if (letter != 'r') dims.push_back({letter == 'q' ? p.head_dim : p.value_dim, x.stride[3]});
  return dims;
}

/// What decode attention writes: rows of the output, where no other part writes the same, and parts of them.
std::optional<Dims> decode_dims(const abi::OpRecord& r, const abi::Operand& x, int operand) {
  const abi::AttentionParams& p = r.params.attention;
  const Dim batch{p.batch, x.stride[0]}, heads{p.heads, x.stride[1]}, queries{p.queries, x.stride[2]};
  const Dim kv_heads{p.kv_heads, x.stride[1]}, parts{p.parts, x.stride[2]};
  const Dim rows{int64_t{p.heads} / p.kv_heads * p.queries, x.stride[3]};
  if (operand == p.fresh_operand) return std::nullopt;
  if (operand == 3 && p.parts == 1) return Dims{batch, heads, queries, {p.value_dim, x.stride[3]}};
  if (operand == 4 && p.parts == 1) return Dims{batch, heads, queries};
  if (operand == 7) return Dims{batch, kv_heads, parts, rows, {p.value_dim, x.stride[4]}};
  if (operand == 8) return Dims{batch, kv_heads, parts, rows, {2, x.stride[4]}};
  return std::nullopt;
}

/// The coordinates that an operand's elements belong to, cut by the tiles into parts that do not meet.
std::optional<Dims> coordinates(const plan::Plan& plan, const Use& use) {
  const plan::Op& op = plan.ops[static_cast<size_t>(use.op)];
  const abi::OpRecord& r = op.record;
  const abi::Operand& x = op.operands[static_cast<size_t>(use.operand)];
  if (use.how.anywhere) return std::nullopt;
  switch (r.kind) {
    case TaskKind::kPointwise:
    case TaskKind::kRow:
    case TaskKind::kColumn:
      return program_dims(r, x, use.how);
    case TaskKind::kMatmulTile:
    case TaskKind::kMatmulFloat:
    case TaskKind::kMatmulSimple: {
      const abi::MatmulTileParams& p = r.params.matmul;
      if (use.operand < 2) return std::nullopt;
      return Dims{{p.batch, x.stride[0]}, {p.m, x.stride[1]}, {p.n, x.stride[2]}};
    }
    case TaskKind::kMatmulRows:
      return rows_dims(plan, r, x, use.operand);
    case TaskKind::kAttentionDecode:
      return decode_dims(r, x, use.operand);
    case TaskKind::kAttentionForward:
    case TaskKind::kAttentionBackward:
    case TaskKind::kAttentionBackwardRows:
    case TaskKind::kAttentionBackwardQuery:
    case TaskKind::kAttentionSimple:
      return attention_dims(r, x, use.operand);
    default:
      return std::nullopt;
  }
}

/// Every coordinate has an element of its own: each stride steps over all that the smaller ones reach.
bool one_to_one(Dims dims) {
  for (Dim& d : dims) d.stride = std::abs(d.stride);
  std::erase_if(dims, [](const Dim& d) { return d.count <= 1; });
  std::sort(dims.begin(), dims.end(), [](const Dim& a, const Dim& b) { return a.stride < b.stride; });
  int64_t reach = 1;
  for (const Dim& d : dims) {
    if (d.stride < reach) return false;
    reach += (d.count - 1) * d.stride;
  }
  return true;
}

bool boxes_apart(const plan::Plan& plan, const Use& a, const Use& b) {
  const plan::Op& op = plan.ops[static_cast<size_t>(a.op)];
  const int64_t bytes = plan.buffers[a.slot].size_bytes;
  std::vector<Box> x, y;
  block_region(op, plan.programs, a.operand, a.how, whole_grid(op.record), bytes, x);
  block_region(op, plan.programs, b.operand, b.how, whole_grid(op.record), bytes, y);
  for (const Box& p : x)
    for (const Box& q : y)
      if (overlap(p, q) != Overlap::kNo) return false;
  return true;
}

}  // namespace

bool apart_by_shape(const plan::Plan& plan, const Use& a, const Use& b) {
  if (tiles_of(plan.ops[static_cast<size_t>(a.op)].record) <= 1) return true;
  if (a.operand != b.operand && boxes_apart(plan, a, b)) return true;
  const std::optional<Dims> own = coordinates(plan, a);
  if (!own || !one_to_one(*own)) return false;
  if (a.operand == b.operand) return true;
  // Both touch the same elements at the same coordinates.
  const std::optional<Dims> other = coordinates(plan, b);
  const auto& operands = plan.ops[static_cast<size_t>(a.op)].operands;
  const abi::Operand &x = operands[static_cast<size_t>(a.operand)], &y = operands[static_cast<size_t>(b.operand)];
  auto same = [](const Dim& p, const Dim& q) { return p.count == q.count && (p.count <= 1 || p.stride == q.stride); };
  const bool rows = plan.ops[static_cast<size_t>(a.op)].record.kind == abi::TaskKind::kMatmulRows;
  return other && !rows && a.how.once == b.how.once && x.offset == y.offset &&
         size_bytes(static_cast<DType>(x.dtype)) == size_bytes(static_cast<DType>(y.dtype)) &&
         std::equal(own->begin(), own->end(), other->begin(), other->end(), same);
}

}  // namespace ark::planner
