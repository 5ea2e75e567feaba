#include "planner/fuse/index_sums.h"

#include <algorithm>

namespace ark::planner {

IndexSums::IndexSums(const Program& program) : program_(program), roots_(program.instrs.size(), false) {
  sums_.reserve(program.instrs.size());
  for (const Instr& instr : program.instrs) sums_.push_back(sum_of(instr));
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    if (sums_[i]) continue;
    const Instr& instr = program.instrs[i];
    for (const int input : {instr.a, instr.b, instr.c, instr.d})
      if (input >= 0 && sums_[static_cast<size_t>(input)] && !sums_[static_cast<size_t>(input)]->is_constant())
        roots_[static_cast<size_t>(input)] = true;
  }
}

std::optional<IndexSums::Sum> IndexSums::sum_of(const Instr& instr) const {
  if (instr.dtype != DType::kI64) return std::nullopt;
  Sum sum;
  if (instr.op == Opcode::kConst) {
    sum.constant = instr.imm_int;
    return sum;
  }
  if (instr.op == Opcode::kIndex) {
    sum.coef[static_cast<size_t>(instr.aux)] = 1;
    return sum;
  }
  if (instr.op != Opcode::kAdd && instr.op != Opcode::kMul) return std::nullopt;
  const std::optional<Sum>&a = sums_[static_cast<size_t>(instr.a)], &b = sums_[static_cast<size_t>(instr.b)];
  if (!a || !b || (instr.op == Opcode::kMul && !a->is_constant() && !b->is_constant())) return std::nullopt;
  const bool adds = instr.op == Opcode::kAdd;
  const Sum &x = !adds && a->is_constant() ? *b : *a, &y = !adds && a->is_constant() ? *a : *b;
  sum.constant = adds ? x.constant + y.constant : x.constant * y.constant;
  for (size_t d = 0; d < sum.coef.size(); ++d) sum.coef[d] = adds ? x.coef[d] + y.coef[d] : x.coef[d] * y.constant;
  return sum;
}

bool IndexSums::merges(int outer, int inner, int64_t inner_size) const {
  for (size_t i = 0; i < roots_.size(); ++i)
    if (roots_[i] &&
        sums_[i]->coef[static_cast<size_t>(outer)] != sums_[i]->coef[static_cast<size_t>(inner)] * inner_size)
      return false;
  return true;
}

bool IndexSums::names(int dim) const {
  for (size_t i = 0; i < roots_.size(); ++i)
    if (roots_[i] && sums_[i]->coef[static_cast<size_t>(dim)] != 0) return true;
  return false;
}

std::vector<Instr> IndexSums::rewritten(const std::vector<int>& new_dim, const std::vector<int>& innermost) const {
  std::vector<Instr> out;
  std::vector<int16_t> place(program_.instrs.size(), -1), coordinate(innermost.size(), -1);
  auto add = [&](const Instr& instr) {
    out.push_back(instr);
    return static_cast<int16_t>(out.size() - 1);
  };
  auto with = [&](Opcode op, int16_t a, int64_t number) {
    const int16_t b = add({.op = Opcode::kConst, .dtype = DType::kI64, .imm_int = number});
    return add({.op = op, .dtype = DType::kI64, .a = a, .b = b});
  };
  auto sum_over = [&](const Sum& sum) {
    int16_t result = -1;
    for (size_t d = 0; d < innermost.size(); ++d) {
      const int64_t coef = innermost[d] < 0 ? 0 : sum.coef[static_cast<size_t>(innermost[d])];
      if (coef == 0) continue;
      if (coordinate[d] < 0)
        coordinate[d] = add({.op = Opcode::kIndex, .dtype = DType::kI64, .aux = static_cast<int16_t>(d)});
      const int16_t term = coef == 1 ? coordinate[d] : with(Opcode::kMul, coordinate[d], coef);
      result = result < 0 ? term : add({.op = Opcode::kAdd, .dtype = DType::kI64, .a = result, .b = term});
    }
    return sum.constant == 0 ? result : with(Opcode::kAdd, result, sum.constant);
  };
  for (size_t i = 0; i < program_.instrs.size(); ++i) {
    if (roots_[i]) {
      place[i] = sum_over(*sums_[i]);
      continue;
    }
    Instr instr = program_.instrs[i];
    for (int16_t* input : {&instr.a, &instr.b, &instr.c, &instr.d})
      if (*input >= 0) *input = place[static_cast<size_t>(*input)];
    if (instr.op == Opcode::kIndex) instr.aux = static_cast<int16_t>(new_dim[static_cast<size_t>(instr.aux)]);
    place[i] = add(instr);
  }
  return out;
}

}  // namespace ark::planner
