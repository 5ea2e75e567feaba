#include "planner/tile/join_sums.h"

#include <algorithm>

#include "base/check.h"
#include "planner/fuse/emit.h"
#include "planner/tile/stored_value.h"

namespace ark::planner {
namespace {

using abi::TaskKind;

constexpr size_t kMostNamed = 32;  // operands that a row's form tells apart (codegen/row_form.h)

/// The operand by which the row op reads what lies at `from` (the product's operand for it): all of it, element (i, j)
/// as element j of row i, and in no other way. -1: none.
int reading_operand(const FusedOp& row, const Program& program, const abi::Operand& from, int64_t m, int64_t n) {
  const abi::OpRecord& r = row.op.record;
  const abi::ProgramParams& p = r.params.program;
  const bool fits = r.kind == TaskKind::kRow && p.num_dims == 2 && p.reduce_dims == 1 && p.first_operand == 0;
  if (!fits || r.size[0] != m || r.size[1] != n) return -1;
  int reading = -1;
  for (size_t x = 0; x < row.op.operands.size(); ++x) {
    const abi::Operand& o = row.op.operands[x];
    if (row.access[x] == Access::kParameters || o.slot != from.slot) continue;
    const bool same = row.access[x] == Access::kRead && o.index_operand < 0 && o.offset == from.offset &&
                      (m == 1 || o.stride[0] == from.stride[1]) && (n == 1 || o.stride[1] == from.stride[2]);
    if (!same || o.dtype != from.dtype || reading >= 0) return -1;
    reading = static_cast<int>(x);
  }
  for (const Instr& in : program.instrs) {
    if (in.op == Opcode::kLoadParts && in.operand <= reading && reading < in.operand + 4) return -1;
    if (touches_memory(in) && in.operand == reading && !is_plain_load(in)) return -1;
  }
  return reading;
}

/// Whether an op writes what the product's epilogue reads.
bool overwrites(const FusedOp& op, const FusedOp& product) {
  const auto first = static_cast<size_t>(product.op.record.params.matmul.first_operand);
  for (size_t x = 0; x < op.access.size(); ++x) {
    if (op.access[x] == Access::kParameters || op.access[x] == Access::kRead) continue;
    for (size_t y = first; y < product.access.size(); ++y)
      if (product.access[y] == Access::kRead && op.op.operands[x].slot == product.op.operands[y].slot) return true;
  }
  return false;
}

/// Whether the row op reads another product too, whose parts it might have to add as well.
bool reads_another_product(const FusedGraph& graph, size_t row, uint32_t slot) {
  for (size_t i = 0; i < row; ++i) {
    const FusedOp& op = graph.ops[i];
    if (op.op.record.kind != TaskKind::kMatmulTile && op.op.record.kind != TaskKind::kMatmulFloat) continue;
    for (size_t x = 0; x < op.access.size(); ++x)
      if (op.access[x] == Access::kWrite && op.op.operands[x].slot != slot &&
          uses(graph.ops[row], op.op.operands[x].slot))
        return true;
  }
  return false;
}

}  // namespace

int joining_row(const FusedGraph& graph, size_t product, int parts) {
  const FusedOp& op = graph.ops[product];
  const abi::MatmulTileParams& p = op.op.record.params.matmul;
  const int stored = stored_operand(op, graph.programs[static_cast<size_t>(p.program)]);
  if (stored < 0) return -1;
  const abi::Operand& to = op.op.operands[static_cast<size_t>(stored)];
  const Storage& storage = graph.storages[to.slot];
  if (storage.input >= 0 || storage.exchange >= 0) return -1;
  // Only the first reader may. It reads later what the epilogue would have read: nobody in between may write that.
  for (size_t i = product + 1; i < graph.ops.size(); ++i) {
    const FusedOp& next = graph.ops[i];
    if (overwrites(next, op)) return -1;
    if (!uses(next, to.slot)) continue;
    if (next.op.record.kind != TaskKind::kRow) return -1;
    const Program& program = graph.programs[static_cast<size_t>(next.op.record.params.program.program)];
    const size_t operands = next.op.operands.size() + op.op.operands.size() - static_cast<size_t>(p.first_operand) +
                            static_cast<size_t>(parts);
    if (operands > std::min(kMaxOperands, kMostNamed) || reads_another_product(graph, i, to.slot)) return -1;
    return reading_operand(next, program, to, p.m, p.n) >= 0 ? static_cast<int>(i) : -1;
  }
  return -1;
}

bool is_kept(const FusedGraph& graph, size_t product, size_t row) {
  const FusedOp& op = graph.ops[product];
  const int stored = stored_operand(op, graph.programs[static_cast<size_t>(op.op.record.params.matmul.program)]);
  const uint32_t slot = op.op.operands[static_cast<size_t>(stored)].slot;
  if (graph.storages[slot].returned) return true;
  for (size_t i = product + 1; i < graph.ops.size(); ++i)
    if (i != row && uses(graph.ops[i], slot)) return true;
  return false;
}

namespace {

/// The row's operands keep their numbers; in the place of the one that goes comes the first of the sum's.
class SumJoiner {
 public:
  SumJoiner(const FusedOp& sum, const Program& sums, FusedOp& row, int replaced)
      : sum_(sum), sums_(sums), row_(row), replaced_(replaced) {
    numbers_.assign(sum.op.operands.size(), -1);
  }

  Program run(const Program& rows, bool keep) {
    result_.kind = rows.kind;
    result_.num_dims = rows.num_dims;
    result_.reduce_dims = rows.reduce_dims;
    const int16_t total = add_sum(keep);
    std::vector<int16_t> place;
    for (const Instr& in : rows.instrs) {
      const bool joined = in.op == Opcode::kLoad && in.operand == replaced_;
      place.push_back(joined ? total : copied(in, place));
    }
    result_.num_operands = static_cast<int>(row_.op.operands.size());
    return std::move(result_);
  }

 private:
  int16_t add_sum(bool keep) {
    std::vector<int16_t> place;
    int16_t total = -1;
    for (Instr in : sums_.instrs) {
      if (in.op == Opcode::kLoad) in.operand = number(in.operand);
      if (in.op != Opcode::kStore) {
        place.push_back(copied(in, place));
        continue;
      }
      total = rounded(place[static_cast<size_t>(in.a)], in.dtype);
      if (keep) append({.op = Opcode::kStore, .dtype = in.dtype, .a = total, .operand = number(in.operand)});
      place.push_back(-1);
    }
    return total;
  }
  int16_t append(const Instr& in) {
    result_.instrs.push_back(in);
    return static_cast<int16_t>(result_.instrs.size() - 1);
  }
  int16_t copied(Instr in, const std::vector<int16_t>& place) {
    for (int16_t* r : {&in.a, &in.b, &in.c, &in.d})
      if (*r >= 0) *r = place[static_cast<size_t>(*r)];
    return append(in);
  }
  /// What a load of the stored value gives.
  int16_t rounded(int16_t value, DType dtype) {
    const Instr& in = result_.instrs[static_cast<size_t>(value)];
    const bool as_stored = in.op == Opcode::kCast ? in.dtype == dtype : false;
    if (as_stored || dtype == DType::kF32) return value;
    return append({.op = Opcode::kCast, .dtype = dtype, .a = value});
  }
  /// The new number of an operand of the sum, over (m, n) instead of (1, m, n).
  int16_t number(int16_t operand) {
    const auto old = static_cast<size_t>(operand);
    if (numbers_[old] >= 0) return numbers_[old];
    abi::Operand o = sum_.op.operands[old];
    o.stride[0] = o.stride[1];
    o.stride[1] = o.stride[2];
    o.stride[2] = 0;
    if (!placed_) {
      placed_ = true;
      row_.op.operands[static_cast<size_t>(replaced_)] = o;
      row_.access[static_cast<size_t>(replaced_)] = sum_.access[old];
      return numbers_[old] = static_cast<int16_t>(replaced_);
    }
    row_.op.operands.push_back(o);
    row_.access.push_back(sum_.access[old]);
    return numbers_[old] = static_cast<int16_t>(row_.op.operands.size() - 1);
  }

  const FusedOp& sum_;
  const Program& sums_;
  FusedOp& row_;
  const int replaced_;
  std::vector<int16_t> numbers_;  // of the sum's operands in the row op
  bool placed_ = false;
  Program result_;
};

}  // namespace

void join_sum(const FusedOp& sum, bool keep, std::vector<Program>& programs, FusedOp& row) {
  const Program sums = programs[static_cast<size_t>(sum.op.record.params.program.program)];
  const Program rows = programs[static_cast<size_t>(row.op.record.params.program.program)];
  const auto store =
      std::find_if(sums.instrs.begin(), sums.instrs.end(), [](const Instr& in) { return in.op == Opcode::kStore; });
  check(store != sums.instrs.end(), "op '", sum.op.name, "': a sum that stores nothing");
  const abi::Operand& to = sum.op.operands[static_cast<size_t>(store->operand)];
  const int64_t m = sum.op.record.size[1], n = sum.op.record.size[2];
  const int replaced = reading_operand(row, rows, to, m, n);
  check(replaced >= 0, "op '", row.op.name, "' does not read the rows of '", sum.op.name, "'");
  const int number = number_of(programs, SumJoiner(sum, sums, row, replaced).run(rows, keep));
  row.op.record.params.program.program = number;
  row.op.programs = {number};
  row.op.bytes += sum.op.bytes - m * n * size_bytes(static_cast<DType>(to.dtype));
  row.spread_rows = true;
  row.op.name = cat(sum.op.name, "+", row.op.name);
}

}  // namespace ark::planner
