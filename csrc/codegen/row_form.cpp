#include "codegen/row_form.h"

#include "base/check.h"

namespace ark::codegen {

std::string constants_of(const RowForm& form) {
  const auto flag = [](const char* name, bool value) { return cat(name, value ? " = true" : " = false"); };
  return cat("  static constexpr int kThreads = ", form.threads, ", kChunks = ", form.chunks, ", kRows = ", form.rows,
             ", kEdgeElements = ", form.edge_elements, ", kSure = ", form.sure, ";\n  static constexpr bool ",
             flag("kInTurn", form.in_turn), ", ", flag("kFull", form.full), ", ", flag("kEdges", form.edges), ", ",
             flag("kAhead", form.ahead_operands != 0), ", ", flag("kStanding", form.standing_operands != 0), ", ",
             flag("kOneTurn", form.one_turn), ";\n  static constexpr u32 kVectorOperands = ", form.vector_operands,
             "u;\n");
}

}  // namespace ark::codegen
