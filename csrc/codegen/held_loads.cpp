#include "codegen/held_loads.h"

#include "base/check.h"

namespace ark::codegen {

std::string held_source(const std::vector<HeldLoad>& loads, int unroll) {
  std::string fields, holds, takes;
  for (const HeldLoad& load : loads) {
    const char* length = load.scalar ? "1" : "V";
    const std::string name = cat("r", load.number);
    fields += cat(" HeldVector<", load.type, ", ", length, "> ", name, ";");
    holds += cat("    hold_operand<", length, ">(c, ", load.operand, ", x, held.", name, ");\n");
    takes += cat("    take_operand<", length, ">(c, ", load.operand, ", held.", name, ", in.", name, ");\n");
  }
  return cat(
      "  static constexpr int kHeldUnroll = ", unroll, ";\n  template <int V> struct HeldInputs {", fields,
      " };\n  template <int V, class Context> static ARK_DEVICE void hold(const Context& c, const i32 "
      "(&x)[kDims], HeldInputs<V>& held) {\n",
      holds,
      "  }\n  template <int V, class Context> static ARK_DEVICE void take(const Context& c, const HeldInputs<V>& "
      "held, Inputs<V>& in) {\n",
      takes, "  }\n");
}

}  // namespace ark::codegen
