// Whether a program has a flat way (flat_form.h), and what of it is computed per row.
#include <algorithm>

#include "codegen/program_analysis.h"

namespace ark::codegen {

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

}  // namespace ark::codegen
