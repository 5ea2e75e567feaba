// kScatterSum.
#include <array>

#include "base/check.h"
#include "planner/verify/kinds/kinds.h"

namespace ark::planner {
namespace {

using X = abi::ScatterSumOperand;

const abi::ScatterSumParams& params(const plan::Op& op) { return op.record.params.scatter_sum; }
int64_t tile_columns(const abi::ScatterSumParams& p) { return int64_t{p.lanes} * p.vector; }

void uses(const plan::Op& op, const std::vector<Program>&, std::vector<OperandUse>& uses) {
  check(uses.size() == X::kCount, "op ", op.name, ": a sum by index with ", uses.size(), " operands");
  uses[X::kIndex].read = uses[X::kSource].read = uses[X::kOut].write = true;
}

void region(const Region& r, BoxEmitter& emitter) {
  const abi::ScatterSumParams& p = params(r.op);
  const abi::Operand& x = r.x();
  const TileBlock& c = r.tiles;
  const Range columns = blocks_of(c.first[1], c.count[1], tile_columns(p), p.columns, x.stride[1]);
  const Range terms{0, p.terms, x.stride[0]};
  if (r.operand == X::kIndex) return emitter.box(std::array{terms});
  if (r.operand == X::kSource) return emitter.box(std::array{terms, columns});
  emitter.box(std::array{blocks_of(c.first[0], c.count[0], p.tile_rows, p.rows, x.stride[0]), columns});
}

std::optional<Dims> coordinates(const Region&) { return std::nullopt; }

void record(const RecordCheck& check) {
  const abi::ScatterSumParams& p = check.record().params.scatter_sum;
  check.need(p.tile_rows > 0 && p.tile_rows <= abi::kScatterMostRows && (p.tile_rows & (p.tile_rows - 1)) == 0,
             "tile rows ", p.tile_rows);
  check.need(p.lanes == abi::kScatterLanes || p.lanes == abi::kScatterFewLanes, "lanes ", p.lanes);
  const int64_t bytes = size_bytes(static_cast<DType>(p.dtype));
  check.need(p.vector == 1 || (p.vector * bytes == 16 && p.columns % p.vector == 0), "vectors of ", p.vector,
             " elements, rows of ", p.columns);
  for (const int i : {X::kSource, X::kOut}) {
    const abi::Operand& x = check.op().operands[static_cast<size_t>(i)];
    const bool whole = x.stride[1] == 1 && x.stride[0] % p.vector == 0 && x.offset % p.vector == 0;
    check.need(p.vector == 1 || x.slot == abi::kNoSlot || whole, "vectors of ", p.vector, " in rows ", x.stride[0],
               " apart");
  }
  check.grid({ceil_div(p.rows, p.tile_rows), ceil_div(p.columns, tile_columns(p)), 1});
}

}  // namespace

extern const Reading kReadScatterSum = {uses, region, coordinates, record};

}  // namespace ark::planner
