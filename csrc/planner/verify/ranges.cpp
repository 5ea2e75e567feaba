#include "planner/verify/ranges.h"

#include <algorithm>
#include <numeric>

namespace ark::planner {
namespace {

ValueRange range_of(int64_t low, int64_t high) { return {true, low, high}; }

/// Within what the arithmetic of ranges has room for.
bool is_short(int64_t number) { return number > -ValueRange::kEndless && number < ValueRange::kEndless; }

bool is_scalar_load(const plan::Op& op, const Program& program, const Instr& load, const abi::Operand& x) {
  if (load.a >= 0 || load.b >= 0 || load.c >= 0 || x.slot == abi::kNoSlot || x.index_operand >= 0) return false;
  if (x.dtype != static_cast<int>(DType::kI64)) return false;
  for (int d = 0; d < program.num_dims; ++d)
    if (op.record.size[d] != 1 && x.stride[d] != 0) return false;
  return true;
}

/// Of two's complement numbers of which one has its last bits alone.
ValueRange masked(const ValueRange& a, const ValueRange& b) {
  for (const ValueRange& mask : {a, b})
    if (mask.is_number() && mask.low >= 0) return range_of(0, mask.low);
  return {};
}

ValueRange shifted(const ValueRange& a, const ValueRange& by) {
  if (!a.is_count() || !by.is_number() || by.low < 0 || by.low > 62) return {};
  return range_of(a.low >> by.low, a.step != 0 ? ValueRange::kEndless : a.high >> by.low);
}

}  // namespace

ValueRange added(const ValueRange& a, const ValueRange& b) {
  const bool both = a.from >= 0 && b.from >= 0;
  if (!a.known || !b.known || both) return {};
  ValueRange result = range_of(a.low + b.low, std::min(a.high + b.high, ValueRange::kEndless));
  result.step = std::gcd(a.step, b.step);
  result.from = std::max(a.from, b.from);
  return result;
}

ValueRange times(const ValueRange& a, int64_t number, int64_t far) {
  constexpr int64_t kMost = int64_t{1} << 31;
  if (number == 1) return a;
  if (!a.is_count() || number < 0 || number > kMost || a.low > kMost || a.step > kMost) return {};
  ValueRange result = range_of(a.low * number, a.low * number);
  if (number >= far)
    result.step = number;
  else if (a.high <= kMost)
    result.high = a.high * number, result.step = a.step * number;
  else
    return {};
  return result;
}

std::vector<ValueRange> value_ranges(const plan::Op& op, const Program& program, int first, int64_t far) {
  std::vector<ValueRange> values;
  for (const Instr& i : program.instrs) {
    const auto arg = [&](int reg) { return reg < 0 ? ValueRange{} : values[static_cast<size_t>(reg)]; };
    const auto operand = [&] { return op.operands[static_cast<size_t>(first + i.operand)]; };
    ValueRange value;
    if (i.dtype == DType::kI64) {
      const ValueRange a = arg(i.a), b = arg(i.b);
      if (i.op == Opcode::kConst && is_short(i.imm_int)) value = range_of(i.imm_int, i.imm_int);
      if (i.op == Opcode::kIndex) value = range_of(0, op.record.size[i.aux] - 1);
      if (i.op == Opcode::kParameter && is_short(operand().stride[i.aux]))
        value = range_of(operand().stride[i.aux], operand().stride[i.aux]);
      if (i.op == Opcode::kLoad && is_scalar_load(op, program, i, operand())) {
        value = range_of(0, 0);
        value.from = first + i.operand;
      }
      if (i.op == Opcode::kAdd) value = added(a, b);
      if (i.op == Opcode::kMul && b.is_number()) value = times(a, b.low, far);
      if (i.op == Opcode::kMul && !b.is_number() && a.is_number()) value = times(b, a.low, far);
      if (i.op == Opcode::kAnd) value = masked(a, b);
      if (i.op == Opcode::kShr) value = shifted(a, b);
    }
    values.push_back(value);
  }
  return values;
}

}  // namespace ark::planner
