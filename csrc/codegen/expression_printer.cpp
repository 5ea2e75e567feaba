#include "codegen/expression_printer.h"

#include "base/check.h"
#include "codegen/expressions.h"

namespace ark::codegen {

std::string ExpressionPrinter::reference(int i) const {
  if (info_[i].run) return first_element_ ? cat("r", i) : cat("(r", i, " + i)");
  return cat("r", i, info_[i].scalar ? "" : "[i]");
}

std::string ExpressionPrinter::converted(int i, DType type) const {
  if (info_[i].type == type) return reference(i);
  if (type == DType::kBool) return cat("(", reference(i), " != 0)");
  return cat("static_cast<", register_type(type), ">(", reference(i), ")");
}

std::string ExpressionPrinter::arithmetic(int i) const {
  const Instr& in = instr(i);
  const int arguments[3] = {in.a, in.b, in.c};
  if (in.op == Opcode::kCast) return cat("cast<", storage_type(in.dtype), ">(", reference(in.a), ")");
  const DType a = in.a >= 0 ? info_[in.a].type : DType::kF32, b = in.b >= 0 ? info_[in.b].type : a;
  std::string text;
  if (in.op == Opcode::kCheckIndex) {
    text = cat("check_index<", in.aux != 0 ? "true" : "false", ">(c, ", converted(in.a, DType::kI64), ", ",
               converted(in.b, DType::kI64), ", ", in.c < 0 ? "true" : converted(in.c, DType::kBool), ")");
  } else if (in.op == Opcode::kPow && in.b >= 0 && instr(in.b).op == Opcode::kConst && info_[i].type == DType::kF32 &&
             (instr(in.b).imm == 2.0 || instr(in.b).imm == 3.0)) {
    text = cat("op::pow", instr(in.b).imm == 2.0 ? 2 : 3, "(", converted(in.a, DType::kF32), ")");
  } else if (const int argument = erf_plus_one(i); argument >= 0) {
    text = cat("op::erf_plus_one_fast(", converted(argument, DType::kF32), ")");
  } else {
    const bool fast =
        (info_[i].fast || (in.op == Opcode::kExp && info_[i].rounded_later)) && info_[i].type == DType::kF32;
    text = function(in.op, fast) + "(";
    for (int k = 0; k < call_arity(in.op); ++k) {
      check(arguments[k] >= 0, "program instruction ", i, " (", name(in.op), "): argument ", k, " is missing");
      text += cat(k ? ", " : "", converted(arguments[k], argument_type(in, k, a, b)));
    }
    text += ")";
  }
  const bool narrow_int =
      info_[i].type == DType::kI64 && compute_type(in.dtype) == DType::kI64 && in.dtype != DType::kI64;
  return narrow_int ? cat("cast<", storage_type(in.dtype), ">(", text, ")") : text;
}

}  // namespace ark::codegen
