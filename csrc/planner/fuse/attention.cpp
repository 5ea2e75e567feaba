// Ops of attention groups, of mask ranges and of index stores that are ops of their own.
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/unsupported.h"
#include "plan/kinds.h"
#include "planner/fuse/emit.h"

namespace ark::planner {
namespace {

using ir::Node;

void set_sizes(const State& state, int q, int k, int v, abi::AttentionParams& p) {
  const Tensor &tq = state.tensor(q), &tk = state.tensor(k), &tv = state.tensor(v);
  p.batch = static_cast<int>(tq.sizes[0]), p.heads = static_cast<int>(tq.sizes[1]),
  p.queries = static_cast<int>(tq.sizes[2]);
  p.head_dim = static_cast<int>(tq.sizes[3]), p.kv_heads = static_cast<int>(tk.sizes[1]),
  p.keys = static_cast<int>(tk.sizes[2]);
  p.value_dim = static_cast<int>(tv.sizes[3]);
  p.dtype = static_cast<int>(tq.dtype);
  p.parts = 1;
  p.positions_per_part = static_cast<int>(positions_per_part(p.head_dim));
  p.fresh_operand = -1;
  std::fill(std::begin(p.map), std::end(p.map), -1);
}

void set_domain(abi::OpRecord& record, const abi::AttentionParams& p) {
  std::fill(record.size, record.size + abi::kMaxDims, 1);
  record.size[0] = p.batch, record.size[1] = p.heads, record.size[2] = p.queries, record.size[3] = p.value_dim;
}

/// The operands that the op has by its kind, in the order of its roles.
void set_operands(FusedOp& op, std::vector<abi::Operand> operands) {
  const plan::Kind& kind = plan::kind_of(op.op.record);
  check(operands.size() <= kind.roles.size(), kind.type, ": ", operands.size(), " operands, expected at most ",
        kind.roles.size());
  for (size_t i = 0; i < operands.size(); ++i) op.access.push_back(kind.roles[i].access);
  op.op.operands = std::move(operands);
}

}  // namespace

/// An operand over the value's own dimensions.
abi::Operand Emitter::strided_operand(int value, DType dtype) const {
  const StridedSource source = strided_source(state_, value);
  const Place& place = state_.places[static_cast<size_t>(source.owner)];
  check(place.storage >= 0, "attention reads value %", source.owner, ", which has no storage");
  abi::Operand x = absent_operand();
  x.slot = static_cast<uint32_t>(place.storage);
  x.dtype = static_cast<short>(dtype);
  x.offset = source.offset + place.offset;
  std::copy(source.strides.begin(), source.strides.end(), x.stride);
  return x;
}

/// The mask as an operand over (b, h, s, t); its range op is made at the first use.
Emitter::MaskInfo Emitter::mask_of(int mask, int64_t queries, int64_t keys, bool with_range) {
  const Tensor& t = state_.tensor(mask);
  MaskInfo info;
  info.source = strided_source(state_, mask);
  info.kind = t.dtype == DType::kBool ? abi::MaskKind::kBool : abi::MaskKind::kAdded;
  info.dtype = t.dtype;
  // Right-aligned broadcast to (batch, heads, queries, keys).
  std::vector<int64_t> sizes(4, 1), strides(4, 0);
  for (size_t d = 0; d < t.sizes.size(); ++d) {
    const size_t to = d + 4 - t.sizes.size();
    sizes[to] = t.sizes[d];
    strides[to] = t.sizes[d] == 1 ? 0 : info.source.strides[d];
  }
  info.source.strides = strides;
  info.batch = strides[0] == 0 ? 1 : sizes[0];
  info.heads = strides[1] == 0 ? 1 : sizes[1];
  info.queries = queries;
  info.keys = keys;
  if (!with_range) return info;
  for (const MaskInfo& known : masks_) {
    if (known.source.owner == info.source.owner && known.source.strides == strides &&
        known.source.offset == info.source.offset && known.queries == queries && known.keys == keys) {
      return known;
    }
  }
  const int64_t blocks = (queries + abi::kRangeBlock - 1) / abi::kRangeBlock;
  const std::vector<int64_t> range_sizes{info.batch, info.heads, blocks, abi::kRangeValues};
  info.range = add_storage(DType::kI32, range_sizes, contiguous_strides(range_sizes),
                           "range of " + state_.graph.values[static_cast<size_t>(mask)].name);
  FusedOp op;
  abi::OpRecord& record = op.op.record;
  record.kind = abi::TaskKind::kMaskRange;
  std::fill(record.size, record.size + abi::kMaxDims, 1);
  record.size[0] = info.batch, record.size[1] = info.heads, record.size[2] = queries, record.size[3] = keys;
  abi::MaskRangeParams& p = record.params.mask_range;
  p.batch = static_cast<int>(info.batch), p.heads = static_cast<int>(info.heads);
  p.queries = static_cast<int>(queries), p.keys = static_cast<int>(keys);
  p.block = abi::kRangeBlock;
  p.mask_kind = info.kind;
  p.dtype = static_cast<int>(info.dtype);
  abi::Operand x = absent_operand();
  const Place& place = state_.places[static_cast<size_t>(info.source.owner)];
  x.slot = static_cast<uint32_t>(place.storage);
  x.dtype = static_cast<short>(info.dtype);
  x.offset = info.source.offset + place.offset;
  std::copy(strides.begin(), strides.end(), x.stride);
  abi::Operand range = range_operand(info);
  const std::vector<int64_t> range_strides = contiguous_strides(range_sizes);
  std::copy(range_strides.begin(), range_strides.end(), range.stride);
  set_operands(op, {x, range});
  const int node = state_.tensor(info.source.owner).node;
  finish(std::move(op), node >= 0 ? std::vector<int>{node} : std::vector<int>{}, -1);
  result_.ops.back().op.name = "range of " + state_.graph.values[static_cast<size_t>(mask)].name;
  masks_.push_back(info);
  return info;
}

/// The range over (b, h, query block, values), stride 0 where the mask broadcasts.
abi::Operand Emitter::range_operand(const MaskInfo& mask) const {
  abi::Operand x = absent_operand();
  if (mask.range < 0) return x;
  x.slot = static_cast<uint32_t>(mask.range);
  x.dtype = static_cast<short>(DType::kI32);
  const int64_t blocks = (mask.queries + abi::kRangeBlock - 1) / abi::kRangeBlock;
  x.stride[3] = 1;
  x.stride[2] = abi::kRangeValues;
  x.stride[1] = mask.heads == 1 ? 0 : abi::kRangeValues * blocks;
  x.stride[0] = mask.batch == 1 ? 0 : abi::kRangeValues * blocks * mask.heads;
  return x;
}

void Emitter::attention_group(int g) {
  const int number = state_.groups[static_cast<size_t>(g)].anchors[0];
  const Node& node = state_.node(number);
  const AttentionWay way = attention_way(state_, node);
  FusedOp op;
  abi::OpRecord& record = op.op.record;
  abi::AttentionParams& p = record.params.attention;
  set_sizes(state_, node.inputs[0], node.inputs[1], node.inputs[2], p);
  if (state_.tensor(node.outputs[0]).numel == 0) return;
  set_domain(record, p);
  record.kind = way == AttentionWay::kDecode    ? abi::TaskKind::kAttentionDecode
                : way == AttentionWay::kForward ? abi::TaskKind::kAttentionForward
                                                : abi::TaskKind::kAttentionSimple;
  p.causal = node.attrs.causal;
  p.causal_offset = 0;  // as in torch: query s sees keys <= s
  p.scale = static_cast<float>(node.attrs.scale);
  const DType dtype = static_cast<DType>(p.dtype);
  using X = abi::AttentionOperand;
  std::vector<abi::Operand> operands(static_cast<size_t>(X::kRange) + 1, absent_operand());
  for (size_t k : {X::kQ, X::kK, X::kV}) operands[k] = strided_operand(node.inputs[k], dtype);
  const int64_t parts = attention_parts(state_, node);
  const bool logsumexp = state_.stored[static_cast<size_t>(node.outputs[1])];
  if (parts <= 1) operands[X::kOut] = strided_operand(node.outputs[0], dtype);
  if (logsumexp) operands[X::kLogSumExp] = strided_operand(node.outputs[1], DType::kF32);
  abi::Operand& mask = operands[X::kMask];
  if (node.attrs.has_mask) {
    // In decode the heads of a group share a range; AttentionSimple looks at every key.
    const Tensor& t = state_.tensor(node.inputs[3]);
    const bool by_head = t.sizes.size() >= 3 && t.sizes[t.sizes.size() - 3] > 1;
    const bool with_range = way == AttentionWay::kForward || (way == AttentionWay::kDecode && !by_head);
    const MaskInfo info = mask_of(node.inputs[3], p.queries, p.keys, with_range);
    mask = strided_operand(node.inputs[3], info.dtype);
    std::copy(info.source.strides.begin(), info.source.strides.end(), mask.stride);
    operands[X::kRange] = range_operand(info);
    p.mask_kind = info.kind;
  }
  if (way == AttentionWay::kDecode) {
    p.parts = static_cast<int>(parts);
    const int64_t rows = int64_t{p.heads / p.kv_heads} * p.queries;
    const abi::Operand range = operands[X::kRange];
    operands.resize(static_cast<size_t>(X::kPartsMaxSum) + 1, absent_operand());
    if (parts > 1) {
      auto add = [&](int64_t inner, const char* what) {
        const std::vector<int64_t> sizes{p.batch, p.kv_heads, parts, rows, inner};
        abi::Operand x = absent_operand();
        x.slot = static_cast<uint32_t>(add_storage(DType::kF32, sizes, contiguous_strides(sizes), node.name + what));
        x.dtype = static_cast<short>(DType::kF32);
        const std::vector<int64_t> strides = contiguous_strides(sizes);
        std::copy(strides.begin(), strides.end(), x.stride);
        return x;
      };
      operands[X::kPartsOut] = add(p.value_dim, ".parts");
      operands[X::kPartsMaxSum] = add(2, ".max_sum");
      State::Parts known;
      known.out = static_cast<StorageId>(operands[X::kPartsOut].slot);
      known.max_sum = static_cast<StorageId>(operands[X::kPartsMaxSum].slot);
      known.range = range.slot == abi::kNoSlot ? -1 : static_cast<StorageId>(range.slot);
      known.parts = parts, known.rows = rows, known.value_dim = p.value_dim,
      known.positions_per_part = p.positions_per_part;
      known.keys = p.keys, known.kv_heads = p.kv_heads, known.queries = p.queries, known.range_stride = range.stride[0];
      state_.parts_of_node[static_cast<size_t>(number)] = static_cast<int>(state_.parts.size());
      state_.parts.push_back(known);
    }
  }
  set_operands(op, std::move(operands));
  const int64_t seen = p.causal ? (int64_t{p.keys} + 1) / 2 : p.keys;
  op.op.flops = 2 * int64_t{p.batch} * p.heads * p.queries * seen * (p.head_dim + p.value_dim);
  finish(std::move(op), {number}, number);
}

void Emitter::attention_backward_group(int g) {
  const int number = state_.groups[static_cast<size_t>(g)].anchors[0];
  const Node& node = state_.node(number);
  const int dout = node.inputs[0], q = node.inputs[1], k = node.inputs[2], v = node.inputs[3], out = node.inputs[4],
            lse = node.inputs[5];
  abi::AttentionParams p{};
  set_sizes(state_, q, k, v, p);
  const DType dtype = static_cast<DType>(p.dtype);
  const bool half = dtype == DType::kBF16 || dtype == DType::kF16;
  check_node(half && p.head_dim == p.value_dim && p.head_dim % 8 == 0 && p.head_dim <= abi::kMostHeadDim, node.name,
             "attention backward '", node.name, "': ", name(dtype), " with head sizes ", p.head_dim, " and ",
             p.value_dim, "; only bf16 and f16 with equal sizes, multiples of 8 up to ", abi::kMostHeadDim);
  check_node(state_.tensor_cores, node.name, "attention backward '", node.name, "' needs tensor cores");
  p.causal = node.attrs.causal;
  p.scale = static_cast<float>(node.attrs.scale);
  if (state_.tensor(q).numel == 0 || state_.tensor(k).numel == 0) return;
  abi::Operand mask = absent_operand(), range = absent_operand();
  if (node.attrs.has_mask) {
    const DType type = state_.tensor(node.inputs[6]).dtype;
    check_node(size_bytes(type) <= 4, node.name, "attention backward '", node.name, "': a mask of ", name(type),
               ", expected elements of at most 4 bytes");
    const MaskInfo info = mask_of(node.inputs[6], p.queries, p.keys, true);
    mask = strided_operand(node.inputs[6], info.dtype);
    std::copy(info.source.strides.begin(), info.source.strides.end(), mask.stride);
    range = range_operand(info);
    p.mask_kind = info.kind;
  }
  const std::vector<int64_t> rows{p.batch, p.heads, p.queries};
  abi::Operand delta = absent_operand();
  delta.slot = static_cast<uint32_t>(add_storage(DType::kF32, rows, contiguous_strides(rows), node.name + ".delta"));
  delta.dtype = static_cast<short>(DType::kF32);
  const std::vector<int64_t> row_strides = contiguous_strides(rows);
  std::copy(row_strides.begin(), row_strides.end(), delta.stride);
  const abi::Operand dout_operand = strided_operand(dout, dtype);
  auto add = [&](abi::TaskKind kind, std::vector<abi::Operand> operands, int64_t products) {
    FusedOp op;
    op.op.record.kind = kind;
    op.op.record.params.attention = p;
    set_domain(op.op.record, p);
    set_operands(op, std::move(operands));
    const int64_t seen = p.causal ? (int64_t{p.keys} + 1) / 2 : p.keys;
    op.op.flops = products * 2 * int64_t{p.batch} * p.heads * p.queries * seen * p.head_dim;
    finish(std::move(op), {number}, number);
  };
  add(abi::TaskKind::kAttentionBackwardRows, {dout_operand, strided_operand(out, dtype), delta}, 0);
  auto gradient = [&](size_t i) {
    return state_.stored[static_cast<size_t>(node.outputs[i])] ? strided_operand(node.outputs[i], dtype)
                                                               : absent_operand();
  };
  using X = abi::AttentionGradOperand;
  std::vector<abi::Operand> operands(X::kCount, absent_operand());
  operands[X::kQ] = strided_operand(q, dtype);
  operands[X::kK] = strided_operand(k, dtype);
  operands[X::kV] = strided_operand(v, dtype);
  operands[X::kGradOut] = dout_operand;
  operands[X::kLogSumExp] = strided_operand(lse, DType::kF32);
  operands[X::kDelta] = delta;
  operands[X::kMask] = mask;
  operands[X::kRange] = range;
  const abi::Operand dq = gradient(0), dk = gradient(1), dv = gradient(2);
  if (dk.slot != abi::kNoSlot || dv.slot != abi::kNoSlot) {
    operands[X::kGradK] = dk, operands[X::kGradV] = dv;
    // The device writes both; one that nobody reads gets memory of its own.
    for (size_t i : {X::kGradK, X::kGradV}) {
      if (operands[i].slot != abi::kNoSlot) continue;
      const Tensor& t = state_.tensor(node.outputs[i - X::kGradQ]);
      abi::Operand x = absent_operand();
      x.slot = static_cast<uint32_t>(add_storage(t.dtype, t.sizes, t.strides, node.name + ".unused"));
      x.dtype = static_cast<short>(t.dtype);
      std::copy(t.strides.begin(), t.strides.end(), x.stride);
      operands[i] = x;
    }
    add(abi::TaskKind::kAttentionBackward, operands, 4);
    operands[X::kGradK] = operands[X::kGradV] = absent_operand();
  }
  if (dq.slot != abi::kNoSlot) {
    operands[X::kGradQ] = dq;
    add(abi::TaskKind::kAttentionBackwardQuery, operands, 3);
  }
}

/// An index store that is an op of its own: first the destination as it was (unless in place), then the stores.
void Emitter::index_store_group(int g) {
  const int number = state_.groups[static_cast<size_t>(g)].anchors[0];
  const Node& node = state_.node(number);
  const int out = node.outputs[0];
  const Tensor &t = state_.tensor(out), &src = state_.tensor(node.inputs[1]);
  if (!state_.in_place[static_cast<size_t>(out)] && t.numel > 0) {
    ProgramSpec spec;
    spec.dims = t.sizes.empty() ? std::vector<int64_t>{1} : t.sizes;
    Coords place;
    for (size_t d = 0; d < t.sizes.size(); ++d) place.push_back(dim_expr(static_cast<int>(d), t.sizes[d]));
    const BuiltProgram built = build(state_, spec, [&](ProgramBuilder& builder) {
                                 builder.copy(node.inputs[0], place, state_.places[static_cast<size_t>(out)]);
                               }).finish();
    FusedOp op;
    set_program_op(op, abi::TaskKind::kPointwise, built);
    finish(std::move(op), built.nodes.empty() ? std::vector<int>{number} : built.nodes, -1);
  }
  if (src.numel == 0) return;
  ProgramSpec spec;
  spec.dims = src.sizes.empty() ? std::vector<int64_t>{1} : src.sizes;
  Coords place;
  for (size_t d = 0; d < src.sizes.size(); ++d) place.push_back(dim_expr(static_cast<int>(d), src.sizes[d]));
  const BuiltProgram built =
      build(state_, spec, [&](ProgramBuilder& builder) { builder.index_store(number, place); }).finish();
  FusedOp op;
  set_program_op(op, abi::TaskKind::kPointwise, built);
  finish(std::move(op), built.nodes, number);
}

}  // namespace ark::planner
