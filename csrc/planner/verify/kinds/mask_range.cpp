// kMaskRange.
#include <array>

#include "base/check.h"
#include "planner/verify/kinds/kinds.h"

namespace ark::planner {
namespace {

using X = abi::MaskRangeOperand;

void uses(const plan::Op& op, const std::vector<Program>&, std::vector<OperandUse>& uses) {
  check(uses.size() == X::kCount, "op ", op.name, ": a mask range with ", uses.size(), " operands");
  uses[X::kMask].read = uses[X::kRange].write = true;
}

void region(const Region& r, BoxEmitter& emitter) {
  const abi::MaskRangeParams& p = r.op.record.params.mask_range;
  const abi::Operand& x = r.x();
  const TileBlock& c = r.tiles;
  const Range batch{c.first[0], c.count[0], x.stride[0]}, head{c.first[1], c.count[1], x.stride[1]};
  if (r.operand == X::kMask) {
    const Range queries = blocks_of(c.first[2], c.count[2], p.block, p.queries, x.stride[2]);
    return emitter.box(std::array{batch, head, queries, Range{0, p.keys, x.stride[3]}});
  }
  const Range block{c.first[2], c.count[2], x.stride[2]};
  emitter.box(std::array{batch, head, block, Range{0, abi::kRangeValues, x.stride[3]}});
}

std::optional<Dims> coordinates(const Region&) { return std::nullopt; }

void record(const RecordCheck& check) {
  const abi::MaskRangeParams& p = check.record().params.mask_range;
  check.need(p.block > 0, "block ", p.block);
  check.grid({p.batch, p.heads, ceil_div(p.queries, p.block)});
}

}  // namespace

extern const Reading kReadMaskRange = {uses, region, coordinates, record};

}  // namespace ark::planner
