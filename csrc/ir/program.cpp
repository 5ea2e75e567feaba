#include "ir/program.h"

#include <algorithm>

#include "base/check.h"

namespace ark {

const char* name(Opcode op) {
  constexpr const char* kNames[] = {
      "const",       "index",     "load",       "root",      "store",       "yield",      "reduce",      "cast",
      "neg",         "abs",       "exp",        "exp2",      "expm1",       "log",        "log2",        "log1p",
      "sqrt",        "rsqrt",     "reciprocal", "sin",       "cos",         "tan",        "tanh",        "sigmoid",
      "erf",         "floor",     "ceil",       "round",     "trunc",       "sign",       "is_nan",      "is_inf",
      "logical_not", "bit_not",   "relu",       "asin",      "acos",        "atan",       "sinh",        "cosh",
      "asinh",       "acosh",     "atanh",      "erfc",      "lgamma",      "add",        "sub",         "mul",
      "div",         "div_floor", "div_trunc",  "remainder", "fmod",        "pow",        "maximum",     "minimum",
      "atan2",       "eq",        "ne",         "lt",        "le",          "gt",         "ge",          "and",
      "or",          "xor",       "shl",        "shr",       "logical_and", "logical_or", "logical_xor", "where",
      "fma",         "rand",      "load_parts", "parameter", "check_index"};
  static_assert(std::size(kNames) == kNumOpcodes);
  return kNames[static_cast<int>(op)];
}

const char* name(ReduceOp op) {
  constexpr const char* kNames[] = {"sum", "prod", "max", "min", "any", "all", "arg_max", "arg_min"};
  static_assert(std::size(kNames) == kNumReduceOps);
  return kNames[static_cast<int>(op)];
}

const char* name(ProgramKind kind) {
  constexpr const char* kNames[] = {"pointwise", "row", "column", "epilogue", "prologue"};
  return kNames[static_cast<int>(kind)];
}

int arity(Opcode op) {
  if (op == Opcode::kConst || op == Opcode::kIndex || op == Opcode::kLoad || op == Opcode::kRoot ||
      op == Opcode::kParameter)
    return 0;
  if (op == Opcode::kWhere || op == Opcode::kFma || op == Opcode::kRand) return 3;
  return op >= Opcode::kAdd ? 2 : 1;
}

namespace {

std::string arguments(const Instr& i) {
  auto reg = [](int r) { return r < 0 ? std::string("-") : cat('%', r); };
  switch (i.op) {
    case Opcode::kConst:
      return is_float(i.dtype) ? cat(' ', i.imm) : cat(' ', i.imm_int);
    case Opcode::kIndex:
      return cat(" dim ", i.aux);
    case Opcode::kParameter:
      return cat(" op", i.operand, '.', i.aux);
    case Opcode::kRoot:
      return cat(' ', i.aux, i.delta_sign > 0 ? " +pair" : i.delta_sign < 0 ? " -pair" : "");
    case Opcode::kReduce:
      return cat(' ', name(static_cast<ReduceOp>(i.aux)), ' ', reg(i.a));
    case Opcode::kLoad: {
      std::string indices = i.a < 0 ? "" : i.b < 0 ? cat('[', reg(i.a), ']') : cat('[', reg(i.a), ", ", reg(i.b), ']');
      return cat(" op", i.operand, indices, i.c < 0 ? "" : cat(" if ", reg(i.c)));
    }
    case Opcode::kStore: {
      std::string indices = i.b < 0 ? "" : i.c < 0 ? cat('[', reg(i.b), ']') : cat('[', reg(i.b), ", ", reg(i.c), ']');
      return cat(" op", i.operand, indices, " <- ", reg(i.a), i.d < 0 ? "" : cat(" if ", reg(i.d)),
                 i.uniform ? " uniform" : "");
    }
    case Opcode::kCheckIndex:
      return cat(' ', reg(i.a), " < ", reg(i.b), i.aux != 0 ? " wraps" : "", i.c < 0 ? "" : cat(" if ", reg(i.c)));
    default:
      break;
  }
  std::string out;
  const int16_t registers[] = {i.a, i.b, i.c};
  for (int k = 0; k < arity(i.op); ++k) out += cat(' ', reg(registers[k]));
  return out;
}

}  // namespace

std::string to_string(const Program& program) {
  std::string out = cat(name(program.kind), " dims=", program.num_dims, " reduce_dims=", program.reduce_dims,
                        " operands=", program.num_operands, "\n");
  for (size_t k = 0; k < program.instrs.size(); ++k) {
    const Instr& i = program.instrs[k];
    out += cat("  %", k, " = ", name(i.op), '.', name(i.dtype), arguments(i), "\n");
  }
  return out;
}

int longest_vector(const Program& program) {
  int narrowest = 8;
  bool doubles = false;
  for (const Instr& in : program.instrs) {
    if (in.op == Opcode::kLoadParts) narrowest = std::min(narrowest, 2);  // f32 parts of a 16-bit result
    if (in.op != Opcode::kLoad && in.op != Opcode::kStore) continue;
    doubles |= in.dtype == DType::kF64;
    narrowest = std::min(narrowest, size_bytes(in.dtype));
  }
  // i64 beside narrower types is mostly an index that is the same along the vector
  return doubles || narrowest == 8 ? 2 : narrowest <= 2 ? 8 : 4;
}

bool has_free_rows(const Program& program) {
  return program.kind == ProgramKind::kPointwise && program.num_dims > 1 &&
         std::none_of(program.instrs.begin(), program.instrs.end(),
                      [&](const Instr& in) { return in.op == Opcode::kIndex && in.aux == program.num_dims - 1; });
}

std::vector<bool> irregular_operands(const Program& program) {
  std::vector<bool> irregular(static_cast<size_t>(program.num_operands), false);
  for (const Instr& in : program.instrs) {
    const bool load = in.op == Opcode::kLoad && (in.a >= 0 || in.b >= 0 || in.c >= 0),
               store = in.op == Opcode::kStore && (in.b >= 0 || in.c >= 0 || in.d >= 0);
    if (load || store || in.op == Opcode::kLoadParts) irregular[static_cast<size_t>(in.operand)] = true;
  }
  return irregular;
}

}  // namespace ark
