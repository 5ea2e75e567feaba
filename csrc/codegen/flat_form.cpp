#include "codegen/flat_form.h"

#include <algorithm>

#include "base/check.h"
#include "codegen/expressions.h"
#include "codegen/program_analysis.h"

namespace ark::codegen {
namespace {

bool in_mask(uint32_t mask, int operand) { return operand >= 0 && operand < 32 && (mask >> operand & 1) != 0; }

}  // namespace

bool is_plain(const Program& program) {
  return std::all_of(program.instrs.begin(), program.instrs.end(), [](const Instr& in) {
    if (in.op == Opcode::kLoad) return in.a < 0 && in.b < 0 && in.c < 0;
    if (in.op == Opcode::kStore) return in.b < 0 && in.c < 0 && in.d < 0;
    return in.op == Opcode::kConst || in.op == Opcode::kIndex ||
           (call_arity(in.op) > 0 && in.op != Opcode::kCheckIndex);
  });
}

FlatForm ProgramAnalysis::flat_form(uint32_t flat) const {
  FlatForm form;
  form.operands = flat & ~broadcast_;
  if (flagged_ || !has_free_rows(program_) || program_.num_operands > 32 || !is_plain(program_)) return form;
  bool stores = false, others = false;
  int narrowest = 16, registers = 0;
  for (int i = 0; i < count_; ++i) {
    const Instr& in = instr(i);
    if (in.op != Opcode::kLoad && in.op != Opcode::kStore) continue;
    const bool is_flat = in_mask(form.operands, in.operand);
    if (in.op == Opcode::kStore && !is_flat) return form;
    stores |= in.op == Opcode::kStore;
    others |= !is_flat;
    if (in.op == Opcode::kLoad)
      registers += info_[i].scalar ? 2 : is_flat ? vector_registers(i) : 2 * held_registers(i);
    if (is_flat && size_bytes(in.dtype) < narrowest) form.head = in.operand, narrowest = size_bytes(in.dtype);
  }
  if (!stores || !others) return form;
  form.exists = true;
  constexpr int kRegisters = 96;
  const int most = is_long() || count_ > 60 ? 1 : count_ > 30 ? 4 : 8;
  form.unroll = std::clamp(kRegisters / std::max(1, registers), 1, most);
  form.loads.resize(count_), form.border.resize(count_), form.body.resize(count_);
  for (int i = 0; i < count_; ++i) form.body[i] = is_sink(instr(i).op);
  for (int i = count_ - 1; i >= 0; --i) {
    if (!form.body[i]) continue;
    form.border[i] = info_[i].scalar && instr(i).op != Opcode::kConst;
    if (form.border[i]) continue;
    if (instr(i).op == Opcode::kStore) {
      form.body[stored_value(instr(i))] = true;
      continue;
    }
    for (const int input : inputs_of(instr(i))) form.body[input] = true;
  }
  form.row = needed_by(form.border);
  for (int i = 0; i < count_; ++i) {
    form.body[i] = form.body[i] && !form.border[i];
    form.loads[i] = form.row[i] && instr(i).op == Opcode::kLoad;
  }
  return form;
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
