#include "planner/cache_rows.h"

#include <algorithm>
#include <numeric>

#include "device/abi/roles.h"
#include "plan/params.h"

namespace ark::planner {
namespace {

/// One program of an op, and what its integers can be at most.
class StoredRows {
 public:
  StoredRows(const plan::Op& op, const Program& program, int first, const CacheRows& rows)
      : op_(op), program_(program), first_(first), rows_(rows) {}

  /// Of one store. An index that is the scalar itself, with nothing to count up from it, may be the next row of a ring
  /// of them: those behind it are older ones, which the last part would read alone.
  std::optional<Scalar> begin(const Instr& store) const {
    const abi::Operand& x = operand(store.operand);
    if (x.index_operand < 0) return std::nullopt;
    const abi::Operand& index = op_.operands[static_cast<size_t>(x.index_operand)];
    const int registers[2] = {store.b, store.c};
    for (int k = 0; k < 2; ++k) {
      if (registers[k] < 0 || index.stride[k] != rows_.stride || at(registers[k]).op != Opcode::kAdd) continue;
      const bool within = rows_.span == 0 || index.stride[2 + k] * rows_.stride <= rows_.span;
      const std::optional<Scalar> scalar = at_least(registers[k]);
      if (!scalar || !within) continue;
      const int other = registers[1 - k];
      const std::optional<int64_t> beside = other < 0 ? 0 : residue(other, index.stride[1 - k]);
      if (beside && in_row(x, *beside)) return scalar;
    }
    return std::nullopt;
  }

 private:
  const Instr& at(int reg) const { return program_.instrs[static_cast<size_t>(reg)]; }
  const abi::Operand& operand(int number) const { return op_.operands[static_cast<size_t>(first_ + number)]; }

  /// Where the coordinates lead, and `beside` elements more, stays in a row.
  bool in_row(const abi::Operand& x, int64_t beside) const {
    int64_t reach = x.offset - rows_.offset;
    if (reach < 0) return false;
    for (int d = 0; d < program_.num_dims; ++d) {
      if (x.stride[d] < 0) return false;
      if (rows_.span == 0 || x.stride[d] % rows_.span != 0) reach += (op_.record.size[d] - 1) * x.stride[d];
    }
    return reach + beside < rows_.stride;
  }

  /// An i64 that the value is never below; of sums of one and what is not negative.
  std::optional<Scalar> at_least(int reg) const {
    const Instr& i = at(reg);
    if (i.dtype != DType::kI64) return std::nullopt;
    if (i.op == Opcode::kLoad) return scalar(i);
    if (i.op != Opcode::kAdd) return std::nullopt;
    for (const auto& [one, other] : {std::pair(i.a, i.b), std::pair(i.b, i.a)})
      if (const std::optional<Scalar> found = at_least(one); found && most(other)) return found;
    return std::nullopt;
  }
  std::optional<Scalar> scalar(const Instr& load) const {
    const abi::Operand& x = operand(load.operand);
    if (load.a >= 0 || load.b >= 0 || load.c >= 0 || x.slot == abi::kNoSlot || x.index_operand >= 0)
      return std::nullopt;
    for (int d = 0; d < program_.num_dims; ++d)
      if (x.stride[d] != 0 && op_.record.size[d] > 1) return std::nullopt;
    return Scalar{x.slot, x.offset};
  }

  std::optional<int64_t> constant(int reg) const {
    const Instr& i = at(reg);
    if (i.dtype != DType::kI64) return std::nullopt;
    if (i.op == Opcode::kConst) return i.imm_int;
    if (i.op == Opcode::kParameter) return operand(i.operand).stride[i.aux];
    return std::nullopt;
  }

  /// The largest that the value can be. None: not known, or it may be negative.
  std::optional<int64_t> most(int reg) const {
    constexpr int64_t kLargest = int64_t{1} << 31;
    const Instr& i = at(reg);
    if (const std::optional<int64_t> number = constant(reg))
      return *number < 0 || *number > kLargest ? std::nullopt : number;
    if (i.dtype != DType::kI64) return std::nullopt;
    if (i.op == Opcode::kIndex) return op_.record.size[i.aux] - 1;
    if (i.op != Opcode::kAdd && i.op != Opcode::kMul && i.op != Opcode::kAnd && i.op != Opcode::kShr)
      return std::nullopt;
    const std::optional<int64_t> a = most(i.a), b = most(i.b);
    if (!a || !b) return std::nullopt;
    const bool by_number = constant(i.a).has_value() || constant(i.b).has_value();
    if (i.op != Opcode::kAdd && !by_number) return std::nullopt;  // as the verifier knows ranges
    if (i.op == Opcode::kAnd) return constant(i.b) ? *b : *a;
    if (i.op == Opcode::kShr) return constant(i.b) && *b < 63 ? std::optional(*a >> *b) : std::nullopt;
    const int64_t result = i.op == Opcode::kAdd ? *a + *b : *a > 0 && *b > kLargest / *a ? -1 : *a * *b;
    return result < 0 || result > kLargest ? std::nullopt : std::optional(result);
  }

  /// The largest that (value * stride) % span can be: multiples of the span lead to the same place of another head.
  std::optional<int64_t> residue(int reg, int64_t stride) const {
    const Instr& i = at(reg);
    const std::optional<int64_t> largest = most(reg);
    if (!largest || stride < 0) return std::nullopt;
    if (i.op == Opcode::kAdd) {
      const std::optional<int64_t> a = residue(i.a, stride), b = residue(i.b, stride);
      return a && b ? std::optional(*a + *b) : std::nullopt;
    }
    if (i.op == Opcode::kMul && rows_.span > 0)
      for (const int factor : {i.a, i.b})
        if (const std::optional<int64_t> number = constant(factor); number && *number * stride % rows_.span == 0)
          return 0;
    return *largest * stride;
  }

  const plan::Op& op_;
  const Program& program_;
  const int first_;
  const CacheRows& rows_;
};

}  // namespace

std::optional<CacheRows> cache_rows(const plan::Op& attention, size_t operand) {
  const abi::AttentionParams& p = attention.record.params.attention;
  const abi::Operand& x = attention.operands[operand];
  const int64_t width = operand == abi::AttentionOperand::kK ? p.head_dim : p.value_dim;
  CacheRows rows{x.offset, x.stride[2], 0};
  int64_t reach = (width - 1) * x.stride[3];
  for (const auto& [count, stride] : {std::pair(p.batch, x.stride[0]), std::pair(p.kv_heads, x.stride[1])}) {
    if (count == 1 || stride == 0) continue;
    if (stride >= rows.stride * p.keys)
      rows.span = std::gcd(rows.span, int64_t{stride});
    else
      reach += (count - 1) * stride;
  }
  const bool apart = x.stride[3] > 0 && rows.stride > reach && reach >= 0;
  return apart && (rows.span == 0 || rows.span >= rows.stride * p.keys) ? std::optional(rows) : std::nullopt;
}

std::optional<Scalar> stored_from(const plan::Op& op, const std::vector<Program>& programs, size_t operand,
                                  const CacheRows& rows) {
  std::optional<Scalar> begin;
  bool known = true;
  plan::for_each_program(op.record, [&](int number, int first, ProgramKind) {
    if (number < 0) return;
    const Program& program = programs[static_cast<size_t>(number)];
    for (const Instr& instr : program.instrs) {
      if (instr.op != Opcode::kStore || static_cast<size_t>(first + instr.operand) != operand) continue;
      const std::optional<Scalar> own = StoredRows(op, program, first, rows).begin(instr);
      known = known && own && (!begin || *begin == *own);
      begin = own;
    }
  });
  return known ? begin : std::nullopt;
}

}  // namespace ark::planner
