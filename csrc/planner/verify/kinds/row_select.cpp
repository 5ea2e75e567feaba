// kRowSelect.
#include <array>

#include "base/check.h"
#include "planner/verify/kinds/kinds.h"

namespace ark::planner {
namespace {

using X = abi::RowSelectOperand;

void uses(const plan::Op& op, const std::vector<Program>&, std::vector<OperandUse>& uses) {
  check(uses.size() == X::kCount, "op ", op.name, ": a row select with ", uses.size(), " operands");
  uses[X::kDistance].read = uses[X::kBound].read = uses[X::kOut].write = true;
}

void region(const Region& r, BoxEmitter& emitter) {
  const abi::Operand& x = r.x();
  const Range rows{r.tiles.first[0], r.tiles.count[0], x.stride[0]};
  if (r.operand != X::kDistance) return emitter.box(std::array{rows});
  emitter.box(std::array{rows, Range{0, r.op.record.params.row_select.size, x.stride[1]}});
}

std::optional<Dims> coordinates(const Region&) { return std::nullopt; }

void record(const RecordCheck& check) {
  const abi::RowSelectParams& p = check.record().params.row_select;
  const abi::Operand& x = check.op().operands[X::kDistance];
  const bool whole = x.stride[1] == 1 && x.stride[0] % 4 == 0 && x.offset % 4 == 0;
  check.need(p.vector == 1 || (p.vector == 4 && whole), "vectors of ", p.vector, " in rows ", x.stride[0], " apart");
  check.need(p.by_mass == 0 || p.by_mass == 1, "by mass ", p.by_mass);
  check.need(p.size >= 0 && p.size <= abi::kSelectMost, "rows of ", p.size, ", at most ", abi::kSelectMost);
  check.need((p.size == 0) == (x.slot == abi::kNoSlot), "rows of ", p.size, " in slot ", x.slot);
  check.need(p.size == 0 || x.dtype == static_cast<short>(DType::kF32), "distances of type ", x.dtype);
  const short out = check.op().operands[X::kOut].dtype;
  check.need(out == static_cast<short>(DType::kI64), "an output of type ", out);
  const DType bound = p.by_mass == 1 ? DType::kF32 : DType::kI64;
  check.need(check.op().operands[X::kBound].dtype == static_cast<short>(bound), "a bound of type ",
             check.op().operands[X::kBound].dtype);
  check.grid({p.rows, 1, 1});
}

}  // namespace

const Reading kReadRowSelect = {uses, region, coordinates, record};

}  // namespace ark::planner
