// The instructions of a program as they are appended: what is known of their registers, constants, and coordinates in
// registers.
#include <algorithm>
#include <bit>

#include "base/check.h"
#include "base/unsupported.h"
#include "planner/fuse/program_builder.h"

namespace ark::planner {

void ProgramBuilder::check_length(size_t needed) {
  if (needed > kMostInstructions)
    throw TooLong("a program", "instructions", static_cast<int64_t>(needed), kMostInstructions);
}

int ProgramBuilder::emit(Instr instr, Reg meta) {
  for (const int arg : {instr.a, instr.b, instr.c, instr.d}) {
    if (arg < 0) continue;
    const Reg& r = reg(arg);
    meta.dims |= r.dims;
    meta.phase = std::max(meta.phase, r.phase);
    meta.roots |= r.roots;
    if (r.pair != 0) meta.pair = meta.pair == 0 || meta.pair == r.pair ? r.pair : -1;
  }
  check_length(instrs_.size() + 1);
  instrs_.push_back(instr);
  regs_.push_back(meta);
  return static_cast<int>(instrs_.size()) - 1;
}

int ProgramBuilder::check_index(int index, int extent, bool wraps, int pred) {
  Reg meta;
  meta.type = meta.rounded = DType::kI64;
  return emit({.op = Opcode::kCheckIndex,
               .dtype = DType::kI64,
               .a = narrow(index),
               .b = narrow(extent),
               .c = narrow(pred),
               .aux = static_cast<int16_t>(wraps)},
              meta);
}

int ProgramBuilder::unary(Opcode op, int a, DType type) {
  Reg meta;
  meta.type = meta.rounded = type;
  return emit({.op = op, .dtype = type, .a = narrow(a)}, meta);
}

int ProgramBuilder::binary(Opcode op, int a, int b, DType type) {
  Reg meta;
  meta.type = meta.rounded = type;
  return emit({.op = op, .dtype = type, .a = narrow(a), .b = narrow(b)}, meta);
}

int ProgramBuilder::select(int condition, int a, int b) {
  Reg meta;
  meta.type = reg(a).type;
  meta.rounded = reg(a).rounded == reg(b).rounded ? reg(a).rounded : meta.type;
  return emit({.op = Opcode::kWhere, .dtype = meta.type, .a = narrow(condition), .b = narrow(a), .c = narrow(b)}, meta);
}

int ProgramBuilder::cast(int a, DType type) {
  const Reg from = reg(a);
  const DType target = compute_type(type);
  if (from.rounded == type || (from.type == target && target == type)) return a;
  Reg meta;
  meta.type = target;
  meta.rounded = type;
  return emit({.op = Opcode::kCast, .dtype = type, .a = narrow(a)}, meta);
}

/// Integers narrower than what they are computed in wrap in registers as they would in memory.
int ProgramBuilder::wrapped(int a, DType type) { return compute_type(type) == DType::kI64 ? cast(a, type) : a; }

/// Rounded as memory would round it: what is decided on a float must not depend on which ops were fused.
int ProgramBuilder::as_stored(int a, DType type) { return is_float(type) ? cast(a, type) : a; }

int ProgramBuilder::constant(DType type, double number, int64_t integer) {
  const auto key = std::make_tuple(type, std::bit_cast<uint64_t>(is_float(type) ? number : 0.0),
                                   is_float(type) ? int64_t{0} : integer);
  const auto found = constants_.find(key);
  if (found != constants_.end()) return found->second;
  Reg meta;
  meta.type = meta.rounded = type;
  Instr instr{.op = Opcode::kConst, .dtype = type};
  instr.imm = is_float(type) ? number : 0.0;
  instr.imm_int = is_float(type) ? 0 : integer;
  const int result = emit(instr, meta);
  constants_[key] = result;
  return result;
}

int ProgramBuilder::term_register(const Term& term) {
  int reg_number = term.reg;
  if (term.dim >= 0) {
    Expr plain;
    plain.terms[plain.num_terms++] = Term{.extent = term.extent, .dim = term.dim};
    int index = -1;
    for (const auto& [expr, r] : expr_regs_) {
      if (expr == plain) index = r;
    }
    if (index < 0) {
      Reg meta;
      meta.type = meta.rounded = DType::kI64;
      meta.dims = 1u << term.dim;
      index = emit({.op = Opcode::kIndex, .dtype = DType::kI64, .aux = term.dim}, meta);
      expr_regs_.emplace_back(plain, index);
    }
    reg_number = index;
  }
  if (term.div > 1) {
    const auto div = static_cast<uint64_t>(term.div);
    reg_number = std::has_single_bit(div)
                     ? binary(Opcode::kShr, reg_number, integer(std::countr_zero(div)), DType::kI64)
                     : binary(Opcode::kDivFloor, reg_number, integer(term.div), DType::kI64);
  }
  if (term.mod > 0) {
    reg_number = std::has_single_bit(static_cast<uint64_t>(term.mod))
                     ? binary(Opcode::kAnd, reg_number, integer(term.mod - 1), DType::kI64)
                     : binary(Opcode::kRemainder, reg_number, integer(term.mod), DType::kI64);
  }
  return reg_number;
}

int ProgramBuilder::expr_register(const Expr& expr) {
  for (const auto& [known, r] : expr_regs_) {
    if (known == expr) return r;
  }
  int sum = -1;
  for (const Term& t : expr.view()) {
    if (t.dim >= 0 && !t.pure()) note_split(t);
    int value = term_register(t);
    if (t.coef != 1) value = binary(Opcode::kMul, value, integer(t.coef), DType::kI64);
    sum = sum < 0 ? value : binary(Opcode::kAdd, sum, value, DType::kI64);
  }
  if (sum < 0) {
    sum = integer(expr.constant);
  } else if (expr.constant != 0) {
    sum = binary(Opcode::kAdd, sum, integer(expr.constant), DType::kI64);
  }
  expr_regs_.emplace_back(expr, sum);
  return sum;
}

/// Register of low <= expr < high (and pred); -1 when that always holds.
int ProgramBuilder::in_range(const Expr& expr, int64_t low, int64_t high, int pred) {
  int result = pred;
  auto both = [&](int condition) {
    result = result < 0 ? condition : binary(Opcode::kLogicalAnd, result, condition, DType::kBool);
  };
  if (expr.min() < low) both(binary(Opcode::kGe, expr_register(expr), integer(low), DType::kBool));
  if (expr.max() >= high) both(binary(Opcode::kLt, expr_register(expr), integer(high), DType::kBool));
  return result;
}

}  // namespace ark::planner
