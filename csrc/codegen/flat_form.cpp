#include "codegen/flat_form.h"

#include <algorithm>

#include "base/check.h"
#include "codegen/expressions.h"
#include "codegen/instr_uses.h"

namespace ark::codegen {

bool is_plain(const Program& program) {
  return std::all_of(program.instrs.begin(), program.instrs.end(), [](const Instr& in) {
    if (in.op == Opcode::kLoad) return in.a < 0 && in.b < 0 && in.c < 0;
    if (in.op == Opcode::kStore) return in.b < 0 && in.c < 0 && in.d < 0;
    return in.op == Opcode::kConst || in.op == Opcode::kIndex || in.op == Opcode::kReduce ||
           (call_arity(in.op) > 0 && in.op != Opcode::kCheckIndex);
  });
}

std::string flat_source(const Program& program, const FlatForm& form, const FlatText& text) {
  const int count = static_cast<int>(program.instrs.size());
  uint32_t across = 0;
  std::string row_inputs, row_loads, inputs, loads, vectors, takes, fields, values, body;
  for (int i = 0; i < count; ++i) {
    const Instr& in = program.instrs[static_cast<size_t>(i)];
    if (form.loads[i]) {
      row_inputs += cat("    Vec<", text.stored(i), ", 1> r", i, ";\n");
      row_loads += cat("    load_row_value(c, ", in.operand, ", x, in.r", i, ");\n");
    } else if (form.body[i] && in.op == Opcode::kLoad) {
      if (!in_mask(form.operands, in.operand)) across |= 1u << in.operand;
      const bool is_flat = in_mask(form.operands, in.operand);
      const std::string type = text.stored(i), held = cat("(c, ", in.operand, ", place, held.r", i);
      inputs += is_flat ? cat("    Vec<", type, ", V> r", i, ";\n")
                        : cat("    AcrossVector<", type, ", V, kCross> r", i, ";\n");
      vectors += cat("    Vec<", type, ", V> r", i, ";\n");
      loads += cat("    load_", is_flat ? "flat" : "across", "<V>", held, ");\n");
      takes +=
          is_flat ? cat("    in.r", i, " = held.r", i, ";\n") : cat("    take_across<V>", held, ", in.r", i, ");\n");
    }
    if (form.row[i]) values += text.instruction(i, true);
    if (form.border[i]) {
      fields += cat("    ", text.type(i), " r", i, ";\n");
      values += cat("    values.r", i, " = r", i, ";\n");
      body += cat("    ", text.type(i), " r", i, "[V]; ARK_EACH r", i, "[i] = i < cut ? first.r", i, " : second.r", i,
                  ";\n");
    }
    if (!form.body[i]) continue;
    body += text.instruction(i, false);
    if (in.op == Opcode::kStore) body += cat("    store_flat<V>(c, ", in.operand, ", e, s", i, ");\n");
  }
  return cat("  static constexpr u32 kFlatOperands = ", form.operands, "u, kAcrossOperands = ", across,
             "u;\n  static constexpr int kFlatHead = ", form.head, ", kFlatUnroll = ", form.unroll,
             ";\n  static constexpr bool kRowValues = ", fields.empty() ? "false" : "true", ";\n  struct RowInputs {\n",
             row_inputs, "  };\n  struct RowValues {\n", fields,
             "  };\n  template <int V, bool kCross> struct FlatInputs {\n", inputs,
             "  };\n  template <int V> struct FlatVectors {\n", vectors,
             "  };\n  template <class Context>\n  static ARK_DEVICE void load_row(const Context& c, const i32 "
             "(&x)[kDims], RowInputs& in) {\n",
             row_loads,
             "  }\n  template <int V, bool kCross, class Context, class Place>\n  static ARK_DEVICE void "
             "load_flat_vectors(const Context& c, const Place& place, FlatInputs<V, kCross>& held) {\n",
             loads,
             "  }\n  template <int V, bool kCross, class Context, class Place>\n  static ARK_DEVICE void "
             "take_flat_vectors(const Context& c, const Place& place, const FlatInputs<V, kCross>& held, "
             "FlatVectors<V>& in) {\n",
             takes,
             "  }\n  template <class Context>\n  static ARK_DEVICE RowValues row_values(const Context& c, const i32 "
             "(&x)[kDims], const RowInputs& in) {\n    RowValues values;\n",
             values,
             "    return values;\n  }\n  /// Elements before `cut` are of the first row.\n  template <int V, class "
             "Context>\n  static ARK_DEVICE void run_flat(const Context& c, i32 e, int cut, const FlatVectors<V>& in, "
             "const RowValues& first,\n                                  const RowValues& second) {\n",
             body, "  }\n");
}

}  // namespace ark::codegen
