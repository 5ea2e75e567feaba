// Attention but decode: kAttentionForward, kAttentionSimple and the three kinds of backward.
#include <algorithm>
#include <array>
#include <span>

#include "base/check.h"
#include "planner/verify/kinds/kinds.h"

namespace ark::planner {
namespace {

using abi::TaskKind;

/// Tensors of attention by their dimensions.
enum class Like {
  kQuery /* b h s d */,
  kKey /* b g t d */,
  kValue /* b g t dv */,
  kKeyPart /* b g t d, g: parts of the heads that share a kv head */,
  kValuePart /* b g t dv */,
  kOut /* b h s dv */,
  kStatistic
  /* b h s */,
  kMask /* b h s t */,
  kRange /* b h blocks 4 */
};

std::span<const Like> likes(TaskKind kind) {
  using enum Like;
  static constexpr Like kForward[] = {kQuery, kKey, kValue, kOut, kStatistic, kMask, kRange};
  static constexpr Like kDelta[] = {kOut, kOut, kStatistic};
  static constexpr Like kGrad[] = {kQuery, kKey,   kValue, kOut,     kStatistic, kStatistic,
                                   kMask,  kRange, kQuery, kKeyPart, kValuePart};
  static_assert(std::size(kForward) == abi::AttentionOperand::kRange + 1);
  static_assert(std::size(kDelta) == abi::AttentionDeltaOperand::kCount);
  static_assert(std::size(kGrad) == abi::AttentionGradOperand::kCount);
  if (kind == TaskKind::kAttentionForward || kind == TaskKind::kAttentionSimple) return kForward;
  if (kind == TaskKind::kAttentionBackwardRows) return kDelta;
  check(kind == TaskKind::kAttentionBackward || kind == TaskKind::kAttentionBackwardQuery, "task kind ",
        static_cast<int>(kind), " is no attention in tiles");
  return kGrad;
}
Like like_of(const plan::Op& op, int operand) {
  const std::span<const Like> all = likes(op.record.kind);
  check(operand >= 0 && static_cast<size_t>(operand) < all.size(), "op ", op.name, ": attention has no operand ",
        operand);
  return all[static_cast<size_t>(operand)];
}

bool written(TaskKind kind, int operand) {
  using Out = abi::AttentionOperand;
  using Grad = abi::AttentionGradOperand;
  if (kind == TaskKind::kAttentionBackwardRows) return operand == abi::AttentionDeltaOperand::kDelta;
  if (kind == TaskKind::kAttentionBackward) return operand == Grad::kGradK || operand == Grad::kGradV;
  if (kind == TaskKind::kAttentionBackwardQuery) return operand == Grad::kGradQ;
  return operand == Out::kOut || operand == Out::kLogSumExp;
}

void uses(const plan::Op& op, const std::vector<Program>&, std::vector<OperandUse>& uses) {
  for (size_t i = 0; i < uses.size(); ++i)
    (written(op.record.kind, static_cast<int>(i)) ? uses[i].write : uses[i].read) = true;
}

/// A tile is a key block of a kv head, or of a part of the heads that share one, or a query block of a head.
bool by_keys(const abi::OpRecord& r) { return r.kind == TaskKind::kAttentionBackward; }
int64_t head_parts(const abi::AttentionParams& p) { return std::max(1, p.head_parts); }

/// The indices of each dimension that a block of tiles touches.
class Touched {
 public:
  explicit Touched(const Region& r)
      : p_(r.op.record.params.attention), x_(r.x()), c_(r.tiles), by_keys_(by_keys(r.op.record)) {}

  Range batch() const { return {c_.first[0], c_.count[0], x_.stride[0]}; }
  Range heads() const {
    const int64_t heads = group() / parts();
    return by_keys_ ? Range{c_.first[1] * heads, c_.count[1] * heads, x_.stride[1]}
                    : Range{c_.first[1], c_.count[1], x_.stride[1]};
  }
  Range kv_heads() const {
    const int64_t first = c_.first[1] / (by_keys_ ? parts() : group());
    const int64_t last = c_.last(1) / (by_keys_ ? parts() : group());
    return {first, last - first + 1, x_.stride[1]};
  }
  Range part_heads() const { return {c_.first[1], c_.count[1], x_.stride[1]}; }
  Range queries() const {
    const int64_t stride = x_.stride[2];
    return by_keys_ ? Range{0, p_.queries, stride} : blocks_of(c_.first[2], c_.count[2], p_.tile_q, p_.queries, stride);
  }
  Range keys(int64_t stride) const {
    return by_keys_ ? blocks_of(c_.first[2], c_.count[2], p_.tile_k, p_.keys, stride) : Range{0, p_.keys, stride};
  }
  Range columns(int64_t count) const { return {0, count, x_.stride[3]}; }
  Range range_blocks() const {
    constexpr int64_t kBlock = abi::kRangeBlock;
    const int64_t first = by_keys_ ? 0 : c_.first[2] * p_.tile_q / kBlock;
    const int64_t end = by_keys_ ? ceil_div(p_.queries, kBlock)
                                 : (std::min((c_.last(2) + 1) * p_.tile_q, int64_t{p_.queries}) - 1) / kBlock + 1;
    return {first, end - first, x_.stride[2]};
  }

 private:
  int64_t group() const { return p_.heads / p_.kv_heads; }
  int64_t parts() const { return by_keys_ ? head_parts(p_) : 1; }
  const abi::AttentionParams& p_;
  const abi::Operand& x_;
  const TileBlock& c_;
  const bool by_keys_;
};

void region(const Region& r, BoxEmitter& emitter) {
  const abi::AttentionParams& p = r.op.record.params.attention;
  const abi::Operand& x = r.x();
  const Touched at(r);
  switch (like_of(r.op, r.operand)) {
    case Like::kQuery:
      return emitter.box(std::array{at.batch(), at.heads(), at.queries(), at.columns(p.head_dim)});
    case Like::kKey:
      return emitter.box(std::array{at.batch(), at.kv_heads(), at.keys(x.stride[2]), at.columns(p.head_dim)});
    case Like::kValue:
      return emitter.box(std::array{at.batch(), at.kv_heads(), at.keys(x.stride[2]), at.columns(p.value_dim)});
    case Like::kKeyPart:
      return emitter.box(std::array{at.batch(), at.part_heads(), at.keys(x.stride[2]), at.columns(p.head_dim)});
    case Like::kValuePart:
      return emitter.box(std::array{at.batch(), at.part_heads(), at.keys(x.stride[2]), at.columns(p.value_dim)});
    case Like::kOut:
      return emitter.box(std::array{at.batch(), at.heads(), at.queries(), at.columns(p.value_dim)});
    case Like::kStatistic:
      return emitter.box(std::array{at.batch(), at.heads(), at.queries()});
    case Like::kMask:
      return emitter.box(std::array{at.batch(), at.heads(), at.queries(), at.keys(x.stride[3])});
    case Like::kRange:
      return emitter.box(std::array{at.batch(), at.heads(), at.range_blocks(), at.columns(abi::kRangeValues)});
  }
}

std::optional<Dims> coordinates(const Region& r) {
  const abi::AttentionParams& p = r.op.record.params.attention;
  const abi::Operand& x = r.x();
  const Like like = like_of(r.op, r.operand);
  const Dim batch{p.batch, x.stride[0]};
  const bool wide = like == Like::kQuery || like == Like::kKey || like == Like::kKeyPart;
  const Dim columns{wide ? p.head_dim : p.value_dim, x.stride[3]};
  if (by_keys(r.op.record)) {
    const bool parted = like == Like::kKeyPart || like == Like::kValuePart;
    if (!parted && (head_parts(p) > 1 || (like != Like::kKey && like != Like::kValue))) return std::nullopt;
    return Dims{batch, {p.kv_heads * (parted ? head_parts(p) : 1), x.stride[1]}, {p.keys, x.stride[2]}, columns};
  }
  Dims dims{batch, {p.heads, x.stride[1]}, {p.queries, x.stride[2]}};
  if (like == Like::kStatistic) return dims;
  if (like != Like::kQuery && like != Like::kOut) return std::nullopt;
  dims.push_back(columns);
  return dims;
}

/// Heads of 16 bits and of multiples of 8 columns.
void check_columns(const RecordCheck& check, int most) {
  const abi::AttentionParams& p = check.record().params.attention;
  const bool half = p.dtype == static_cast<int>(DType::kBF16) || p.dtype == static_cast<int>(DType::kF16);
  const auto fits = [&](int dim) { return dim > 0 && dim % 8 == 0 && dim <= most; };
  check.need(half && fits(p.head_dim) && fits(p.value_dim), "heads of ", p.head_dim, " and ", p.value_dim,
             " columns of ", name(static_cast<DType>(p.dtype)), ", expected 16 bits and multiples of 8 up to ", most);
}

const std::vector<int32_t> kBox = {64, 64, 1, 1};  // columns, rows

void check_maps(const RecordCheck& check) {
  using X = abi::AttentionGradOperand;  // q, k, v have the numbers that they have forward
  const abi::AttentionParams& p = check.record().params.attention;
  const auto map = [&](int operand, int64_t columns, int64_t rows, int64_t heads) {
    const abi::Operand& x = check.op().operands.at(static_cast<size_t>(operand));
    check.map(p.map[operand], operand, {columns, rows, heads, p.batch}, kBox, {x.stride[2], x.stride[1], x.stride[0]});
  };
  map(X::kQ, p.head_dim, p.queries, p.heads);
  map(X::kK, p.head_dim, p.keys, p.kv_heads);
  map(X::kV, p.value_dim, p.keys, p.kv_heads);
  if (check.record().kind != TaskKind::kAttentionForward) map(X::kGradOut, p.value_dim, p.queries, p.heads);
}

void record(const RecordCheck& check) {
  const abi::AttentionParams& p = check.record().params.attention;
  const TaskKind kind = check.record().kind;
  check.need(p.kv_heads > 0 && p.heads % p.kv_heads == 0, p.heads, " heads, ", p.kv_heads, " kv heads");
  const size_t operands = likes(kind).size();
  check.need(check.op().operands.size() == operands, check.op().operands.size(), " operands, expected ", operands);
  check.need(p.tile_q > 0 && p.tile_k > 0, "tiles of ", p.tile_q, " x ", p.tile_k);
  if (by_keys(check.record())) {
    const int64_t group = p.heads / p.kv_heads;
    check.need(p.head_parts >= 0 && group % head_parts(p) == 0, group, " heads share a kv head, in ", p.head_parts,
               " parts");
    check.grid({p.batch, p.kv_heads * head_parts(p), ceil_div(p.keys, p.tile_k)});
  } else {
    check.grid({p.batch, p.heads, ceil_div(p.queries, p.tile_q)});
  }
  if (kind == TaskKind::kAttentionBackwardRows) return;
  if (kind == TaskKind::kAttentionSimple) {
    const bool known =
        p.tile_q == abi::kMmaQueries || p.tile_q == abi::kTiledQueries || p.tile_q == abi::kTiledQueriesF64;
    check.need(known, "tiles of ", p.tile_q, " queries");
    if (p.tile_q == abi::kMmaQueries) check_columns(check, 256);
    return;
  }
  check_columns(check, abi::kMostHeadDim);
  check.need(p.head_dim == p.value_dim, "heads of ", p.head_dim, " and ", p.value_dim, " columns, expected equal ones");
  check_maps(check);
}

}  // namespace

extern const Reading kReadAttention = {uses, region, coordinates, record};

}  // namespace ark::planner
