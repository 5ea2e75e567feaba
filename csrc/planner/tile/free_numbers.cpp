#include "planner/tile/free_numbers.h"

#include <iterator>

namespace ark::planner {
namespace {

/// Whether argument k (a, b, c, d) of the instruction is the place of an element: in a stream of random numbers, or in
/// what is read or written by index.
bool names_place(Opcode op, size_t k) {
  if (op == Opcode::kRand) return k == 2;
  if (op == Opcode::kLoad) return k <= 1;
  return op == Opcode::kStore && (k == 1 || k == 2);
}

}  // namespace

FreeNumbers::FreeNumbers(const Program& program, bool sizes_vary) : program_(program), sizes_vary_(sizes_vary) {
  if (sizes_vary) find_places();
}

std::vector<int> FreeNumbers::find() const {
  const std::vector<Instr>& instrs = program_.instrs;
  std::vector<bool> used(instrs.size(), false), freely(instrs.size(), true);
  for (size_t i = 0; i < instrs.size(); ++i)
    for (const int16_t input : {instrs[i].a, instrs[i].b, instrs[i].c, instrs[i].d}) {
      if (input < 0) continue;
      used[static_cast<size_t>(input)] = true;
      if (!takes_freely(i, input)) freely[static_cast<size_t>(input)] = false;
    }
  std::vector<int> found;
  for (size_t k = 0; k < instrs.size(); ++k) {
    const Instr& i = instrs[k];
    if (i.op == Opcode::kConst && i.dtype == DType::kI64 && used[k] && freely[k]) found.push_back(static_cast<int>(k));
  }
  return found;
}

bool FreeNumbers::is_size(int number) const {
  if (!sizes_vary_) return false;
  for (size_t i = 0; i < program_.instrs.size(); ++i)
    for (const int16_t input : {program_.instrs[i].a, program_.instrs[i].b})
      if (input == number && is_size_of(i, number)) return true;
  return false;
}

/// Whether instruction i takes register `input` as a number that might as well be any other.
bool FreeNumbers::takes_freely(size_t i, int input) const {
  const Instr& instr = program_.instrs[i];
  if (instr.op == Opcode::kRand) return instr.c != input;  // seed or offset
  if (sizes_vary_ && is_size_of(i, input)) return true;
  return instr.op == Opcode::kAdd && compute_type(instr.dtype) == DType::kI64;
}

bool FreeNumbers::is_size_of(size_t i, int input) const {
  return is_extent(i, input) || is_place_factor(i) || is_part_length(i, input);
}

/// The part's begin in a row is its number times this.
bool FreeNumbers::is_part_length(size_t i, int input) const {
  const Instr& instr = program_.instrs[i];
  return program_.kind == ProgramKind::kRow && instr.op == Opcode::kMul && instr.b == input &&
         program_.instrs[static_cast<size_t>(instr.a)].op == Opcode::kIndex;
}

bool FreeNumbers::is_extent(size_t i, int input) const {
  const Instr& instr = program_.instrs[i];
  return instr.op == Opcode::kCheckIndex && instr.b == input && instr.a != input;
}

bool FreeNumbers::is_place_factor(size_t i) const { return program_.instrs[i].op == Opcode::kMul && place_[i]; }

/// Sums and products that are used in places only, from the last instruction to the first.
void FreeNumbers::find_places() {
  const std::vector<Instr>& instrs = program_.instrs;
  std::vector<bool> elsewhere(instrs.size(), false);
  place_.assign(instrs.size(), false);
  for (size_t i = instrs.size(); i-- > 0;) {
    const Instr& instr = instrs[i];
    place_[i] = place_[i] && !elsewhere[i] && (instr.op == Opcode::kAdd || instr.op == Opcode::kMul);
    const int16_t inputs[] = {instr.a, instr.b, instr.c, instr.d};
    for (size_t k = 0; k < std::size(inputs); ++k)
      if (inputs[k] >= 0)
        (place_[i] || names_place(instr.op, k) ? place_ : elsewhere)[static_cast<size_t>(inputs[k])] = true;
  }
}

}  // namespace ark::planner
