#include "plan/pointwise_form.h"

#include <algorithm>

namespace ark::plan {
namespace {

constexpr int kVectorBytes = 16;

/// Reached by coordinates alone.
bool is_plain_load(const Instr& in) { return in.op == Opcode::kLoad && in.a < 0 && in.b < 0 && in.c < 0; }
bool is_plain_store(const Instr& in) { return in.op == Opcode::kStore && in.b < 0 && in.c < 0 && in.d < 0; }
bool is_masked_load(const Instr& in) { return in.op == Opcode::kLoad && in.a < 0 && in.b < 0 && in.c >= 0; }

/// The domain's elements; 0: there are none, or more than 32 bits are made for.
int64_t count_elements(const abi::OpRecord& record) {
  if (record.params.program.tile > abi::kMostWhole) return 0;
  int64_t total = 1;
  for (int d = 0; d < record.params.program.num_dims; ++d) {
    if (record.size[d] <= 0 || record.size[d] > abi::kMostWhole / total) return 0;
    total *= record.size[d];
  }
  return total;
}

/// Contiguous, and aligned at multiples of `vector` elements in every row.
bool moves_whole(const abi::OpRecord& record, const abi::Operand& o, int64_t vector) {
  const int last = record.params.program.num_dims - 1;
  const int64_t together = std::min<int64_t>(vector, kVectorBytes / size_bytes(static_cast<DType>(o.dtype)));
  bool whole = o.stride[last] == 1 && o.vector >= together && o.offset % together == 0;
  for (int d = 0; d < last; ++d) whole = whole && (record.size[d] == 1 || o.stride[d] % together == 0);
  return whole;
}

bool is_buffer(const abi::Operand& o) { return o.slot != abi::kNoSlot && o.slot != abi::kFlagSlot; }

/// No vector ends behind its row or its item.
bool divides(const abi::OpRecord& record, int64_t elements, int64_t vector) {
  const abi::ProgramParams& p = record.params.program;
  const bool rows = p.num_dims == 1 || record.size[p.num_dims - 1] % vector == 0;
  return rows && (p.tile % vector == 0 || p.tile >= elements);
}

}  // namespace

void set_pointwise_form(const Program& program, RunOp& run) {
  abi::OpRecord& record = run.record;
  abi::ProgramParams& p = record.params.program;
  for (int d = 0; d < abi::kMaxDims; ++d)
    p.by[d] = abi::divisor_of(static_cast<unsigned>(std::max<int64_t>(record.size[d], 1)));
  if (record.kind != abi::TaskKind::kPointwise) return;
  const int64_t elements = count_elements(record);
  p.elements = static_cast<int32_t>(elements);
  p.scalars = 0;
  const int vector = longest_vector(program);
  bool whole = elements > 0 && p.num_dims > 0 && divides(record, elements, vector), masked = true;
  for (const Instr& in : program.instrs) {
    const auto at = static_cast<size_t>(p.first_operand + in.operand);
    if (whole && is_masked_load(in))
      masked = masked && at < run.operands.size() && is_buffer(run.operands[at]) &&
               moves_whole(record, run.operands[at], vector);
    if (!whole || !(is_plain_load(in) || is_plain_store(in))) continue;
    if (at >= run.operands.size() || run.operands[at].slot == abi::kNoSlot) {
      whole = false;
    } else if (in.op == Opcode::kLoad && run.operands[at].stride[p.num_dims - 1] == 0 && in.operand < 32) {
      p.scalars |= 1u << in.operand;
    } else {
      whole = run.operands[at].slot != abi::kFlagSlot && moves_whole(record, run.operands[at], vector);
    }
  }
  p.whole = whole ? vector : 0;
  p.masked = whole && masked ? 1 : 0;
  if (!whole) p.scalars = 0;
}

}  // namespace ark::plan
