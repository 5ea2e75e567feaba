#include "codegen/row_form.h"

#include <algorithm>

#include "base/check.h"
#include "codegen/program_source.h"

namespace ark::codegen {
namespace {

constexpr int kWarp = 32, kWarpgroup = 128, kConsumers = 256;  // device/loop/pipeline.cuh
constexpr int kKeptRegisters = 144;  // of the 224 that a consumer has and its caller leaves 180 of

const abi::ProgramParams& params_of(const plan::Op& op) { return op.record.params.program; }
const abi::Operand& operand_of(const plan::Op& op, int i) {
  const size_t number = static_cast<size_t>(params_of(op).first_operand + i);
  check(number < op.operands.size(), "op '", op.name, "': operand ", number, " of ", op.operands.size());
  return op.operands[number];
}

/// Operands that only plain accesses use, by how: stride 0 along the row in all ops, or vectors.
struct Accesses {
  uint32_t loads = 0, stores = 0;  // plain ones of elements (not of a row's results)
};
Accesses accesses_of(const Program& program) {
  Accesses a;
  uint32_t irregular = 0;
  for (const Instr& in : program.instrs) {
    if (in.op != Opcode::kLoad && in.op != Opcode::kStore && in.op != Opcode::kLoadParts) continue;
    if (in.operand >= 32) continue;
    const uint32_t bit = 1u << in.operand;
    const bool load = in.op == Opcode::kLoad;
    if (in.op == Opcode::kLoadParts || in.b >= 0 || in.c >= 0 || (load ? in.a >= 0 : in.d >= 0))
      irregular |= bit;
    else if (load)
      a.loads |= bit;
    else if (!in.uniform)
      a.stores |= bit;
  }
  a.loads &= ~irregular;
  a.stores &= ~irregular;
  return a;
}

bool same_along_row(const plan::Op& op, int operand) {
  const abi::ProgramParams& p = params_of(op);
  const abi::Operand& o = operand_of(op, operand);
  for (int d = p.num_dims - p.reduce_dims; d < p.num_dims; ++d)
    if (o.stride[d] != 0) return false;
  return true;
}

/// Vectors of `vector` elements begin at the row's first element, in every row.
bool aligned(const plan::Op& op, uint32_t operands, int vector) {
  const abi::ProgramParams& p = params_of(op);
  if (op.record.size[p.num_dims - 1] % vector != 0) return false;
  for (int i = 0; i < 32; ++i) {
    if ((operands >> i & 1) == 0) continue;
    const abi::Operand& o = operand_of(op, i);
    const int together = std::min(vector, 16 / size_bytes(static_cast<DType>(o.dtype)));
    if (o.stride[p.num_dims - 1] != 1 || o.vector < together) return false;
  }
  return true;
}

/// All operands are contiguous along the row and off alignment by the same number of elements (slots are aligned).
bool off_alike(const plan::Op& op, uint32_t operands, int vector) {
  const abi::ProgramParams& p = params_of(op);
  if (p.reduce_dims != 1) return false;
  const abi::Operand* first = nullptr;
  for (int i = 0; i < 32; ++i) {
    if ((operands >> i & 1) == 0) continue;
    const abi::Operand& o = operand_of(op, i);
    if (o.stride[p.num_dims - 1] != 1) return false;
    if (first == nullptr) first = &o;
    if ((o.offset - first->offset) % vector != 0) return false;
    for (int d = 0; d + 1 < p.num_dims; ++d)
      if (op.record.size[d] > 1 && (o.stride[d] - first->stride[d]) % vector != 0) return false;
  }
  return first != nullptr;
}

/// Operands of plain accesses that are not the same for all rows of some op.
uint32_t differing_operands(const Program& program, const std::vector<const plan::Op*>& ops) {
  const uint32_t loads = accesses_of(program).loads;
  uint32_t differ = 0;
  for (const plan::Op* op : ops)
    for (int i = 0; i < 32; ++i)
      if ((loads >> i & 1) != 0)
        for (int d = 0; d < params_of(*op).num_dims - params_of(*op).reduce_dims; ++d)
          if (operand_of(*op, i).stride[d] != 0) differ |= 1u << i;
  return differ;
}

int narrowest_operand(const plan::Op& op, uint32_t operands) {
  int best = -1;
  for (int i = 0; i < 32; ++i) {
    if ((operands >> i & 1) == 0) continue;
    const auto size = [&](int k) { return size_bytes(static_cast<DType>(operand_of(op, k).dtype)); };
    if (best < 0 || size(i) < size(best)) best = i;
  }
  return best;
}

/// Threads that share a row of an op whose rows are streamed: a tile of few rows keeps all consumers busy.
int threads_of(const plan::Op& op) {
  const int64_t rows = std::min<int64_t>(params_of(op).tile, params_of(op).num_rows);
  return rows >= kConsumers / kWarp ? kWarp : rows >= kConsumers / kWarpgroup ? kWarpgroup : kConsumers;
}

void choose_vectors(const Program& program, const std::vector<const plan::Op*>& ops, RowForm& form) {
  const Accesses accesses = accesses_of(program);
  form.same_operands = accesses.loads & ~accesses.stores;
  for (const plan::Op* op : ops)
    for (int i = 0; i < 32; ++i)
      if ((form.same_operands >> i & 1) != 0 && !same_along_row(*op, i)) form.same_operands &= ~(1u << i);
  const uint32_t moved = (accesses.loads | accesses.stores) & ~form.same_operands;
  form.vector = row_vector_length(program, form);
  if (program.num_operands > 32) {  // masks do not name them all
    form.vector = 1;
    return;
  }
  const auto all = [&](auto&& holds) {
    return std::all_of(ops.begin(), ops.end(), [&](const plan::Op* op) { return holds(*op, moved, form.vector); });
  };
  const uint32_t gathers = row_gathers(program, form);
  const auto fits = [&](const plan::Op* op) { return aligned(*op, moved | gathers, form.vector); };
  if (std::all_of(ops.begin(), ops.end(), fits)) {
    form.vector_operands = moved | gathers;
  } else if (all(aligned)) {
    form.vector_operands = moved;
  } else if (all(off_alike)) {
    form.vector_operands = moved;
    form.head_operand = narrowest_operand(*ops.front(), moved);
    form.edges = true;
  } else {
    do form.vector /= 2;
    while (form.vector > 1 && !all(aligned));
    if (form.vector > 1) form.vector_operands = moved;
  }
}

}  // namespace

RowForm row_form(const Program& program, const std::vector<const plan::Op*>& ops) {
  RowForm form;
  choose_vectors(program, ops, form);
  int64_t longest = 0, shortest = INT64_MAX;
  form.threads = kConsumers;
  for (const plan::Op* op : ops) {
    longest = std::max(longest, int64_t{params_of(*op).row_size});
    shortest = std::min(shortest, int64_t{params_of(*op).row_size});
  }
  form.threads = kWarp;
  for (const plan::Op* op : ops) form.threads = std::max(form.threads, threads_of(*op));
  if (form.head_operand >= 0 || longest == 0) return form;
  const int64_t step = int64_t{form.threads} * form.vector, chunks = (longest + step - 1) / step;
  const bool full = longest == shortest && longest % step == 0;
  if (chunks > 16 || chunks * int64_t{row_kept_registers(program, form, full)} > kKeptRegisters) return form;
  form.full = full;
  form.chunks = static_cast<int>(chunks);
  form.ahead_operands = differing_operands(program, ops);
  if (!full || chunks * row_ahead_registers(program, form) > kKeptRegisters) form.ahead_operands = 0;
  return form;
}

bool row_form_serves(const RowForm& form, const plan::Op& op) {
  for (int i = 0; i < 32; ++i)
    if ((form.same_operands >> i & 1) != 0 && !same_along_row(op, i)) return false;
  const bool fits =
      form.edges ? off_alike(op, form.vector_operands, form.vector) : aligned(op, form.vector_operands, form.vector);
  if (!fits || threads_of(op) > form.threads) return false;
  const int64_t kept = int64_t{form.threads} * form.vector * form.chunks, size = params_of(op).row_size;
  return form.chunks == 0 || (form.full ? size == kept : size <= kept);
}

}  // namespace ark::codegen
