#include "planner/tile/split_places.h"

#include <algorithm>
#include <utility>

namespace ark::planner {
namespace {

ReduceOp reduce_of(const Instr& instr) { return static_cast<ReduceOp>(instr.aux); }

int16_t append(Program& out, Instr instr) {
  out.instrs.push_back(instr);
  return static_cast<int16_t>(out.instrs.size() - 1);
}
int16_t append_index(Program& out, int dim) {
  return append(out, {.op = Opcode::kIndex, .dtype = DType::kI64, .aux = static_cast<int16_t>(dim)});
}
int16_t append_number(Program& out, int64_t number) {
  return append(out, {.op = Opcode::kConst, .dtype = DType::kI64, .imm_int = number});
}

bool yields_bool(Opcode op) {
  return (op >= Opcode::kEq && op <= Opcode::kGe) || op == Opcode::kLogicalNot || op == Opcode::kLogicalAnd ||
         op == Opcode::kLogicalOr || op == Opcode::kLogicalXor || op == Opcode::kIsNan || op == Opcode::kIsInf;
}
DType value_type(const Instr& instr) {
  if (instr.op == Opcode::kIndex) return DType::kI64;
  return yields_bool(instr.op) ? DType::kBool : compute_type(instr.dtype);
}

/// Rows that are split, parts that they are split in, and what a part costs by itself, in elements.
constexpr int64_t kLeastRow = 16416, kLeastPart = 1024, kPartCost = 1024;
/// Elements that all threads of a worker take at once. Fewer take less time only down to half of it.
constexpr int64_t kAtOnce = 2048;
int64_t work_of(int64_t elements) {
  return elements > kAtOnce ? (elements + kAtOnce - 1) / kAtOnce * kAtOnce : std::max(elements, kAtOnce / 2);
}
/// Parts begin at multiples of the longest vector.
constexpr int64_t kVector = 8;

}  // namespace

bool yields_place(const Instr& instr) {
  return instr.op == Opcode::kReduce &&
         (reduce_of(instr) == ReduceOp::kArgMax || reduce_of(instr) == ReduceOp::kArgMin);
}
bool yields_places(const Program& program) { return std::ranges::any_of(program.instrs, yields_place); }

bool counts_elements(const Instr& instr) {
  return instr.op == Opcode::kReduce && (reduce_of(instr) == ReduceOp::kSum || reduce_of(instr) == ReduceOp::kProd);
}

std::optional<Extremes> with_extremes(const Program& program) {
  Extremes result{program, std::vector<int>(program.instrs.size(), -1), program.instrs.size()};
  std::vector<Instr>& instrs = result.program.instrs;
  for (size_t i = 0; i < result.num_asked; ++i) {
    if (!yields_place(instrs[i])) continue;
    const DType type = value_type(instrs[static_cast<size_t>(instrs[i].a)]);
    if (type == DType::kBool) return std::nullopt;
    const ReduceOp wanted = reduce_of(instrs[i]) == ReduceOp::kArgMax ? ReduceOp::kMax : ReduceOp::kMin;
    const Instr extreme{.op = Opcode::kReduce, .dtype = type, .a = instrs[i].a, .aux = static_cast<int16_t>(wanted)};
    auto found = std::ranges::find(instrs, extreme);
    if (found == instrs.end()) found = instrs.insert(instrs.end(), extreme);
    result.extreme[i] = static_cast<int>(found - instrs.begin());
  }
  result.extreme.resize(instrs.size(), -1);
  return result;
}

RowCut cut_for_places(const FusedOp& op, const Program& program, int64_t workers) {
  const abi::OpRecord& record = op.op.record;
  const abi::ProgramParams& p = record.params.program;
  const int outermost = p.num_dims - p.reduce_dims;
  int64_t kept = 1, reduced = 1;
  for (int d = 0; d < p.num_dims; ++d) (d < outermost ? kept : reduced) *= record.size[d];
  if (kept == 0 || p.num_dims == abi::kMaxDims || kept * 2 > workers || reduced < kLeastRow) return {};
  // What stores elements may not see them twice.
  const bool exact = std::ranges::any_of(
      program.instrs, [](const Instr& instr) { return instr.op == Opcode::kStore && !instr.uniform; });
  const int64_t size = record.size[outermost], inner = reduced / size;
  RowCut best;
  int64_t best_cost = INT64_MAX;
  for (int64_t parts = 2; parts <= std::min(size, 4 * workers); ++parts) {
    int64_t step = size / parts;
    if (exact && size % parts != 0) continue;
    if (!exact && inner == 1) step -= step % kVector;
    const int64_t length = size - (parts - 1) * step;
    if (step * inner < kLeastPart) break;
    const int64_t rounds = (kept * parts + workers - 1) / workers,
                  cost = rounds * (work_of(length * inner) + kPartCost);
    if (cost < best_cost) best = {parts, step, length}, best_cost = cost;
  }
  return best;
}

int16_t append_owned(Program& out, const RowCut& cut, int part_dim) {
  const int16_t index = append_index(out, part_dim + 1), step = append_number(out, cut.step);
  const int16_t before = append(out, {.op = Opcode::kLt, .dtype = DType::kBool, .a = index, .b = step});
  const int16_t part = append_index(out, part_dim), last = append_number(out, cut.parts - 1);
  const int16_t is_last = append(out, {.op = Opcode::kEq, .dtype = DType::kBool, .a = part, .b = last});
  return append(out, {.op = Opcode::kLogicalOr, .dtype = DType::kBool, .a = before, .b = is_last});
}

int16_t append_owned_value(Program& out, const Instr& reduce, int16_t owned) {
  if (!counts_elements(reduce)) return reduce.a;
  const int64_t neutral = reduce_of(reduce) == ReduceOp::kProd;
  const DType type = value_type(out.instrs[static_cast<size_t>(reduce.a)]);
  const int16_t other =
      append(out, {.op = Opcode::kConst, .dtype = type, .imm = static_cast<double>(neutral), .imm_int = neutral});
  return append(out, {.op = Opcode::kWhere, .dtype = type, .a = owned, .b = reduce.a, .c = other});
}

int16_t append_place(Program& out, const Instr& reduce, int16_t extremes, int16_t places, int part_dim,
                     int64_t part_step) {
  Instr first = reduce;
  first.a = extremes;
  const int16_t best = append(out, first), part = append_index(out, part_dim);
  const int16_t step = append_number(out, part_step);
  const int16_t begin = append(out, {.op = Opcode::kMul, .dtype = DType::kI64, .a = part, .b = step});
  const int16_t place = append(out, {.op = Opcode::kAdd, .dtype = DType::kI64, .a = places, .b = begin});
  const int16_t is_best = append(out, {.op = Opcode::kEq, .dtype = DType::kBool, .a = part, .b = best});
  const int16_t none = append_number(out, -1);
  const int16_t chosen = append(out, {.op = Opcode::kWhere, .dtype = DType::kI64, .a = is_best, .b = place, .c = none});
  return append(
      out, {.op = Opcode::kReduce, .dtype = reduce.dtype, .a = chosen, .aux = static_cast<int16_t>(ReduceOp::kMax)});
}

}  // namespace ark::planner
