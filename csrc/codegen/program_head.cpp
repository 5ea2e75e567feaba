// Constants and short functions that a program's struct begins with, and those of a row's factor.
#include <algorithm>

#include "base/check.h"
#include "codegen/expressions.h"
#include "codegen/program_analysis.h"
#include "codegen/row_factor.h"

namespace ark::codegen {

std::string ProgramAnalysis::column_source(uint32_t ways) const {
  const ColumnShape shape = column_shape();
  return cat("  static constexpr bool kPlain = ", shape.plain ? "true" : "false",
             ", kFolds = ", shape.folds ? "true" : "false", "; static constexpr u32 kLoads = ", shape.loads,
             "u, kVectorLoads = ", shape.vector_loads, "u, kColumnWays = ", ways, "u;\n");
}

std::string ProgramAnalysis::form_source() const {
  std::string out = constants_of(*form_);
  out += "  /// Elements of a row before its first vector.\n";
  out += "  static ARK_DEVICE int head(const ProgramContext& c, const i32 (&x)[kDims]) {\n";
  const auto of_head = [&](const Instr& in) { return in.operand == form_->head_operand && in.op != Opcode::kConst; };
  const auto head = std::find_if(program_.instrs.begin(), program_.instrs.end(), of_head);
  const auto aligned = [&] { return cat("elements_until_aligned<kVector, ", storage_type(head->dtype), ">(c, "); };
  out += form_->head_operand < 0 ? "    return 0;\n  }\n"
                                 : cat("    return ", aligned(), form_->head_operand, ", x);\n  }\n");
  std::string counts;
  for (int pass = 0; pass < num_passes_; ++pass) counts += cat(pass > 0 ? ", " : "", in_flight(pass));
  return out + cat("  static constexpr int kInFlight[] = {", counts, "};  // vectors of a streamed row, by pass\n");
}

bool ProgramAnalysis::is_of_squares(const RowFactor& of) const {
  const auto by_words = [&](int i) { return i < 0 || (info_[i].plain_load && !info_[i].scalar); };
  return of.squared >= 0 && by_words(of.squared) && by_words(of.weight);
}

std::string ProgramAnalysis::squares_source(const RowFactor& of) const {
  if (!is_of_squares(of)) return "";
  const auto word = [&](const char* name, int load) {  // a load by itself, and what it has brought
    return cat("  template <int V>\n  static ARK_DEVICE void load_", name,
               "(const ProgramContext& c, const i32 (&x)[kDims], Inputs<V>& in) {\n    load_operand<V>(c, ",
               instr(load).operand, ", x, in.r", load, ");\n  }\n  template <int V> static ARK_DEVICE Vec<bf16, V>& ",
               name, "(Inputs<V>& in) { return in.r", load, "; }\n");
  };
  return cat(word("squared", of.squared), of.weight < 0 ? "" : word("weight", of.weight),
             "  static constexpr bool kWeighted = ", of.weight < 0 ? "false" : "true",
             ";\n  static ARK_DEVICE void finish(float squares, Uniform& u) { u.r", of.reduction, " = squares; }\n");
}

}  // namespace ark::codegen
