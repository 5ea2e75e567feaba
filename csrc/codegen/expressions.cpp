#include "codegen/expressions.h"

#include <cmath>
#include <cstdio>

#include "base/check.h"

namespace ark::codegen {

const char* storage_type(DType type) {
  constexpr const char* kNames[kNumDTypes] = {"boolean", "unsigned char", "signed char", "short", "int",
                                              "i64",     "f16",           "bf16",        "float", "double"};
  return kNames[static_cast<int>(type)];
}

const char* register_type(DType type) {
  switch (compute_type(type)) {
    case DType::kF32:
      return "float";
    case DType::kF64:
      return "double";
    case DType::kBool:
      return "bool";
    default:
      return "i64";
  }
}

namespace {

bool yields_bool(Opcode op) {
  return (op >= Opcode::kEq && op <= Opcode::kGe) || op == Opcode::kLogicalNot || op == Opcode::kLogicalAnd ||
         op == Opcode::kLogicalOr || op == Opcode::kLogicalXor || op == Opcode::kIsNan || op == Opcode::kIsInf;
}

/// The type that holds both: f64, f32, i64, bool.
DType wider(DType a, DType b) {
  const auto rank = [](DType t) { return t == DType::kF64 ? 3 : t == DType::kF32 ? 2 : t == DType::kI64 ? 1 : 0; };
  a = compute_type(a);
  b = compute_type(b);
  return rank(a) >= rank(b) ? a : b;
}

}  // namespace

DType result_type(const Instr& instr) {
  if (yields_bool(instr.op)) return DType::kBool;
  if (instr.op == Opcode::kIndex) return DType::kI64;
  if (instr.op == Opcode::kRand || instr.op == Opcode::kLoadParts) return DType::kF32;
  if (instr.op == Opcode::kReduce) {
    const auto reduce = static_cast<ReduceOp>(instr.aux);
    if (reduce == ReduceOp::kArgMax || reduce == ReduceOp::kArgMin) return DType::kI64;
    if (reduce == ReduceOp::kAny || reduce == ReduceOp::kAll) return DType::kBool;
  }
  return compute_type(instr.dtype);
}

DType argument_type(const Instr& instr, int which, DType actual_a, DType actual_b) {
  const Opcode op = instr.op;
  if (op >= Opcode::kEq && op <= Opcode::kGe) return wider(actual_a, actual_b);
  if (op == Opcode::kIsNan || op == Opcode::kIsInf || op == Opcode::kCast) return compute_type(actual_a);
  if (op == Opcode::kLogicalNot) return compute_type(actual_a);
  if (yields_bool(op)) return DType::kBool;
  if (op == Opcode::kRand) return DType::kI64;
  if (op == Opcode::kWhere && which == 0) return DType::kBool;
  return compute_type(instr.dtype);
}

std::string constant(const Instr& instr) {
  const DType type = compute_type(instr.dtype);
  if (type == DType::kBool) return instr.imm_int != 0 ? "true" : "false";
  char text[64];
  if (type == DType::kI64) {
    if (instr.imm_int == INT64_MIN) return "(-9223372036854775807ll - 1)";
    std::snprintf(text, sizeof(text), "i64{%lldll}", static_cast<long long>(instr.imm_int));
    return text;
  }
  // A float constant is rounded to the instruction's type once, here.
  const bool wide = type == DType::kF64;
  const double value = wide ? instr.imm : static_cast<double>(static_cast<float>(instr.imm));
  if (std::isnan(value)) return wide ? "double{op::not_a_number()}" : "op::not_a_number()";
  if (std::isinf(value)) {
    const std::string sign = value < 0 ? "-" : "";
    return wide ? cat("double{", sign, "op::infinity()}") : cat(sign, "op::infinity()");
  }
  std::snprintf(text, sizeof(text), wide ? "%.17g" : "%.9g", value);
  std::string out = text;
  if (out.find_first_of(".e") == std::string::npos) out += ".0";
  return wide ? out : out + "f";
}

std::string function(Opcode op, bool fast) {
  switch (op) {
    case Opcode::kAnd:
      return "op::bit_and";
    case Opcode::kOr:
      return "op::bit_or";
    case Opcode::kXor:
      return "op::bit_xor";
    default:
      break;
  }
  const bool has_fast = op == Opcode::kExp || op == Opcode::kTanh || op == Opcode::kSigmoid ||
                        op == Opcode::kReciprocal || op == Opcode::kDiv;
  return cat("op::", name(op), fast && has_fast ? "_fast" : "");
}

int call_arity(Opcode op) {
  if (op >= Opcode::kCast && op <= Opcode::kLgamma) return 1;
  if ((op >= Opcode::kAdd && op <= Opcode::kLogicalXor) || op == Opcode::kCheckIndex) return 2;
  if (op == Opcode::kWhere || op == Opcode::kFma || op == Opcode::kRand) return 3;
  return 0;
}

int code_of(const Instr& in) {
  switch (in.op) {
    case Opcode::kRand:
      return 30;
    case Opcode::kLog:
    case Opcode::kLog2:
      return 25;
    case Opcode::kLog1p:
    case Opcode::kExpm1:
    case Opcode::kErf:
      return 35;
    case Opcode::kExp:
    case Opcode::kTanh:
      return 15;
    case Opcode::kDiv:
      return 10;
    default:
      return in.dtype == DType::kI64 ? 2 : 1;
  }
}

std::string accumulator_type(ReduceOp reduce, DType source, DType result) {
  const bool wide = source == DType::kF64 || result == DType::kF64;
  const bool floating = source == DType::kF32 || result == DType::kF32;
  const char* type = wide ? "double" : floating ? "float" : "i64";
  switch (reduce) {
    case ReduceOp::kSum:
      return cat("SumAccumulator<", type, ">");
    case ReduceOp::kProd:
      return cat("ProdAccumulator<", type, ">");
    case ReduceOp::kMax:
      return source == DType::kBool ? "AnyAccumulator" : cat("MaxAccumulator<", type, ">");
    case ReduceOp::kMin:
      return source == DType::kBool ? "AllAccumulator" : cat("MinAccumulator<", type, ">");
    case ReduceOp::kAny:
      return "AnyAccumulator";
    case ReduceOp::kAll:
      return "AllAccumulator";
    case ReduceOp::kArgMax:
    case ReduceOp::kArgMin: {
      const char* key = source == DType::kF64 ? "double" : source == DType::kF32 ? "float" : "i64";
      return cat("ArgAccumulator<", key, ", ", reduce == ReduceOp::kArgMax ? "true" : "false", ">");
    }
  }
  throw InternalError(cat("reduce op ", static_cast<int>(reduce)));
}

}  // namespace ark::codegen
