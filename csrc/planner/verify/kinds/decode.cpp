// kAttentionDecode.
#include <array>

#include "base/check.h"
#include "device/abi/variants.h"
#include "planner/verify/kinds/kinds.h"

namespace ark::planner {
namespace {

using X = abi::AttentionOperand;

void uses(const plan::Op&, const std::vector<Program>&, std::vector<OperandUse>& uses) {
  for (size_t i = 0; i < uses.size(); ++i) {
    const bool written = i == X::kOut || i == X::kLogSumExp || i == X::kPartsOut || i == X::kPartsMaxSum;
    (written ? uses[i].write : uses[i].read) = true;
  }
}

void region(const Region& r, BoxEmitter& emitter) {
  const abi::AttentionParams& p = r.op.record.params.attention;
  const abi::Operand& x = r.x();
  const TileBlock& c = r.tiles;
  const int64_t group = p.heads / p.kv_heads;
  const Range batch{c.first[0], c.count[0], x.stride[0]}, heads{c.first[1] * group, c.count[1] * group, x.stride[1]};
  const Range kv_head{c.first[1], c.count[1], x.stride[1]}, queries{0, p.queries, x.stride[2]};
  const Range keys{0, p.keys, x.stride[2]}, part{c.first[2], c.count[2], x.stride[2]};
  switch (r.operand) {
    case X::kQ:
      return emitter.box(std::array{batch, heads, queries, Range{0, p.head_dim, x.stride[3]}});
    case X::kK:
      return emitter.box(std::array{batch, kv_head, keys, Range{0, p.head_dim, x.stride[3]}});
    case X::kV:
      return emitter.box(std::array{batch, kv_head, keys, Range{0, p.value_dim, x.stride[3]}});
    case X::kOut:
      return emitter.box(std::array{batch, heads, queries, Range{0, p.value_dim, x.stride[3]}});
    case X::kLogSumExp:
      return emitter.box(std::array{batch, heads, queries});
    case X::kMask:
      return emitter.box(std::array{batch, heads, queries, Range{0, p.keys, x.stride[3]}});
    case X::kRange:
      return emitter.box(std::array{batch, heads, Range{0, abi::kRangeValues, x.stride[3]}});
    case X::kPartsOut:
    case X::kPartsMaxSum: {
      const Range inner{0, r.operand == X::kPartsOut ? p.value_dim : 2, x.stride[4]};
      return emitter.box(std::array{batch, kv_head, part, Range{0, group * p.queries, x.stride[3]}, inner});
    }
    case X::kPosition:
      return emitter.box({});
    default:
      throw InternalError(cat("op ", r.op.name, ": attention has no operand ", r.operand));
  }
}

/// What decode attention writes: rows of the output, where no other part writes the same, and parts of them.
std::optional<Dims> coordinates(const Region& r) {
  const abi::AttentionParams& p = r.op.record.params.attention;
  const abi::Operand& x = r.x();
  const Dim batch{p.batch, x.stride[0]}, heads{p.heads, x.stride[1]}, queries{p.queries, x.stride[2]};
  const Dim kv_heads{p.kv_heads, x.stride[1]}, parts{p.parts, x.stride[2]};
  const Dim rows{int64_t{p.heads} / p.kv_heads * p.queries, x.stride[3]};
  if (r.operand == X::kOut && p.parts == 1) return Dims{batch, heads, queries, {p.value_dim, x.stride[3]}};
  if (r.operand == X::kLogSumExp && p.parts == 1) return Dims{batch, heads, queries};
  if (r.operand == X::kPartsOut) return Dims{batch, kv_heads, parts, rows, {p.value_dim, x.stride[4]}};
  if (r.operand == X::kPartsMaxSum) return Dims{batch, kv_heads, parts, rows, {2, x.stride[4]}};
  return std::nullopt;
}

void record(const RecordCheck& check) {
  const abi::AttentionParams& p = check.record().params.attention;
  check.need(p.kv_heads > 0 && p.heads % p.kv_heads == 0, p.heads, " heads, ", p.kv_heads, " kv heads");
  const int64_t rows = int64_t{p.heads} / p.kv_heads * p.queries;
  check.need(p.head_dim == p.value_dim && abi::is_decode_dim(p.head_dim), "heads of ", p.head_dim, " and ", p.value_dim,
             " columns, expected equal multiples of 16 from 64 to 256");
  check.need(rows >= 1 && rows <= 16, rows, " query rows of a kv head, expected 1 to 16");
  const size_t operands = check.op().operands.size();
  check.need(operands > X::kRange && operands <= X::kCount, operands, " operands, expected ", X::kRange + 1, " to ",
             int{X::kCount});
  // Who reads a part of a cache early must know its position, and who knows it counts parts by it.
  const uint32_t bits = 1u << X::kK | 1u << X::kV | 1u << X::kPosition;
  const bool has_position = operands == X::kCount && check.op().operands[X::kPosition].slot != abi::kNoSlot;
  check.need(!has_position || (check.op().early & bits) == bits, "a position, and operands read early ",
             check.op().early, ", expected ", bits, " among them");
  check.need(!has_position || check.op().operands[X::kPosition].dtype == static_cast<int>(DType::kI64),
             "its position is no i64");
  check.need(p.tiles_at_once == 0 || p.tiles_at_once == 1 ||
                 (p.tiles_at_once == 2 && p.parts == 1 && has_position && p.head_dim <= abi::kMostPairedDim),
             p.tiles_at_once, " tiles at once, of ", p.parts, " parts, heads of ", p.head_dim, " columns and ",
             has_position ? "a" : "no", " position; expected 0, 1, or 2 of whole heads of at most ",
             abi::kMostPairedDim, " columns with a position");
  const abi::Operand& range = check.op().operands[X::kRange];  // an entry is one load of all its values
  check.need(range.slot == abi::kNoSlot ||
                 (range.stride[3] == 1 && (range.offset | range.stride[0] | range.stride[1]) % abi::kRangeValues == 0),
             "the values of a range do not lie together");
  check.need(p.parts <= 1 || operands > X::kPartsMaxSum, operands, " operands of ", p.parts, " parts");
  check.grid({p.batch, p.kv_heads, p.parts});
}

}  // namespace

extern const Reading kReadDecode = {uses, region, coordinates, record};

}  // namespace ark::planner
