// How much a thread has in registers: vectors of loads that are under way together, and what rows keep.
#include <algorithm>
#include <bit>

#include "codegen/program_analysis.h"

namespace ark::codegen {

int ProgramAnalysis::row_kept_registers(bool full) const {
  int all = 0, most = 0;
  for (int pass = 0; pass < num_passes_; ++pass) {
    int more = 0;
    for (int i = 0; i < count_; ++i)
      if (loaded_in(i, pass) && !loaded_before(i, pass)) more += vector_registers(i);
    all += more;
    most = std::max(most, more + (pass == 0 ? 0 : form_->vector * kept_values()));
  }
  return (full ? std::min(all, most) : all) + function_registers();
}

int ProgramAnalysis::row_ahead_registers() const {
  int ahead = 0, last = 0;
  for (int i = 0; i < count_; ++i) {
    if (loaded_ahead(i) || stands(i))
      ahead += vector_registers(i);
    else if (num_passes_ > 1 && loaded_in(i, num_passes_ - 1) && !loaded_before(i, num_passes_ - 1))
      last += vector_registers(i);
  }
  return ahead + last + form_->vector * kept_values() + function_registers();
}

int ProgramAnalysis::function_registers() const {
  const bool calls = std::any_of(program_.instrs.begin(), program_.instrs.end(), [&](const Instr& in) {
    const int i = static_cast<int>(&in - program_.instrs.data());
    return !info_[i].scalar && info_[i].pass == 0 && in.op >= Opcode::kExp && in.op <= Opcode::kErf;
  });
  return calls && num_passes_ > 1 ? 2 * form_->vector : 0;
}

int ProgramAnalysis::unroll() const {
  // Columns: a sum and what is added to it, an address for each load.
  constexpr int kOfColumns = 88, kAddress = 4;
  int registers = 0, room = column_ ? kOfColumns : 64;
  for (int i = 0; i < count_; ++i) {
    if (irregular_load(i)) return 1;
    if (column_ && instr(i).op == Opcode::kReduce)
      room -= 2 * std::max(1, size_bytes(instr(i).dtype) * vector_length() / 4);
    if (!info_[i].preloaded) continue;
    registers += std::max(1, size_bytes(instr(i).dtype) * vector_length() / 4);
    if (column_) room -= kAddress;
  }
  if (registers == 0 || is_long()) return 1;
  const int most = count_ > 60 ? 1 : count_ > 25 ? 2 : column_ ? 16 : row_ ? 4 : 8;
  const int vectors = std::clamp(room / registers, 1, most);
  return column_ ? static_cast<int>(std::bit_floor(static_cast<unsigned>(vectors))) : vectors;  // rows come in 2^n
}

int ProgramAnalysis::held_registers(int i) const {
  const int bytes = size_bytes(instr(i).dtype) * (info_[i].scalar ? 1 : vector_length());
  return info_[i].scalar ? (bytes + 3) / 4 : (bytes + std::min(bytes, 16)) / 4 + 1;
}

int ProgramAnalysis::held_unroll() const {
  constexpr int kRegisters = 96;
  int registers = program_.num_dims + 2;  // where the vector lies
  for (int i = 0; i < count_; ++i)
    if (info_[i].plain_load) registers += held_registers(i);
  return is_long() || count_ > 60 ? 1 : std::clamp(kRegisters / registers, 1, count_ > 25 ? 2 : 8);
}

int ProgramAnalysis::in_flight(int pass) const {
  int registers = 0, instructions = 0;
  const std::vector<bool> needed = needed_in(pass);
  for (int i = 0; i < count_; ++i) {
    if (!needed[i]) continue;
    if (irregular_load(i)) return 1;
    if (!info_[i].scalar) instructions += vector_length();
    if (loaded_in(i, pass)) registers += vector_registers(i);
  }
  if (is_long()) return 1;
  const int most = std::clamp(800 / std::max(1, instructions), 2,
                              vector_length() < 4 ? 16 : 8);  // code: so many copies of the pass
  return registers == 0 ? 2 : std::clamp(64 / registers, 1, most);
}

int ProgramAnalysis::kept_values() const {
  if (num_passes_ == 1) return 0;
  const std::vector<bool> first = needed_in(0);
  std::vector<bool> kept(count_);
  for (int pass = 1; pass < num_passes_; ++pass) {
    const std::vector<bool> needed = needed_in(pass);
    for (int i = 0; i < count_; ++i) {
      if (!needed[i] || first[i] || instr(i).op == Opcode::kReduce) continue;
      for (const int input : inputs_of(instr(i)))
        if (first[input] && !info_[input].scalar) kept[input] = true;
    }
  }
  return static_cast<int>(std::count(kept.begin(), kept.end(), true));
}

int ProgramAnalysis::cached_chunks() const {
  int registers = 0;
  for (int i = 0; i < count_; ++i) {
    if (irregular_load(i)) return 1;
    if (info_[i].preloaded) registers += std::max(1, size_bytes(instr(i).dtype) * vector_length() / 4);
  }
  return std::clamp(registers == 0 ? 4 : 64 / registers, 1, 4);
}

}  // namespace ark::codegen
