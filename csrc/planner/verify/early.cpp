// What is read before the waits (plan::Op::early), proved from the ops before: nothing orders such a read but the
// launch before this one, so what it reads is an input or a constant that no op before writes. Later writers are races
// or none, as any (memory.cpp).
//
// Of a cache with a position ops before may write rows: by an index that is the position or more. The rest of the
// address then stays within a row, or goes to the same row of another head. A negative position has no rows below it.
#include <numeric>
#include <vector>

#include "device/abi/roles.h"
#include "planner/verify/checks.h"
#include "planner/verify/ranges.h"
#include "planner/verify/regions.h"

namespace ark::planner {
namespace {

using plan::Plan;
using Attention = abi::AttentionOperand;

struct EarlyWrite {
  size_t op, operand;
};

/// How the rows of keys or values lie in the buffer: so far from one to the next, and from head to head.
struct KeyRows {
  int64_t offset, stride, head;  // head 0: there is one
};

KeyRows key_rows(const Plan& plan, size_t index, size_t operand) {
  const plan::Op& op = plan.ops[index];
  const abi::AttentionParams& p = op.record.params.attention;
  const abi::Operand& x = op.operands[operand];
  int64_t head = 0, width = (operand == Attention::kK ? p.head_dim : p.value_dim) * x.stride[3];
  const int64_t counts[2] = {p.batch, p.kv_heads};
  for (int d = 0; d < 2; ++d) {
    if (counts[d] <= 1 || x.stride[d] == 0) continue;
    if (x.stride[d] >= x.stride[2] * p.keys)
      head = std::gcd(head, int64_t{x.stride[d]});
    else
      width += (counts[d] - 1) * x.stride[d];
  }
  require(plan, width <= x.stride[2] && (head == 0 || head >= x.stride[2] * p.keys),
          describe(plan, static_cast<int64_t>(index)), ": rows of operand ", operand, " reach into each other");
  return {x.offset, x.stride[2], head};
}

/// Whether the store goes to rows from the scalar in `position` on.
bool stores_from(const plan::Op& op, const Program& program, int first, const Instr& store, const KeyRows& rows,
                 const abi::Operand& position) {
  const std::vector<ValueRange> values = value_ranges(op, program, first, rows.stride);
  const abi::Operand& x = op.operands[static_cast<size_t>(first + store.operand)];
  if (x.index_operand < 0 || x.offset < rows.offset) return false;
  const abi::Operand& numbers = op.operands[static_cast<size_t>(x.index_operand)];
  const int registers[2] = {store.b, store.c};
  ValueRange place{true, x.offset - rows.offset, x.offset - rows.offset};
  bool by_row = false;
  for (int k = 0; k < 2; ++k) {
    if (registers[k] < 0) continue;
    const ValueRange& index = values[static_cast<size_t>(registers[k])];
    if (!by_row && index.from >= 0 && numbers.stride[k] == rows.stride) {
      const abi::Operand& from = op.operands[static_cast<size_t>(index.from)];
      by_row = from.slot == position.slot && from.offset == position.offset && index.low >= 0 &&
               (rows.head == 0 || numbers.stride[2 + k] * rows.stride <= rows.head);
      if (!by_row) return false;
    } else {
      place = added(place, times(index, numbers.stride[k], rows.stride));
    }
  }
  for (int d = 0; d < program.num_dims; ++d)
    place = added(place, times({true, 0, op.record.size[d] - 1}, x.stride[d], rows.stride));
  if (!by_row || !place.known || place.from >= 0 || place.low < 0) return false;
  const bool same_row = rows.head == 0 ? place.step == 0 : place.step % rows.head == 0;
  return same_row && place.high < rows.stride;
}

class EarlyVerifier {
 public:
  explicit EarlyVerifier(const Plan& plan) : plan_(plan), writes_(plan.buffers.size()) {}

  void run() {
    for (size_t index = 0; index < plan_.ops.size(); ++index) {
      const plan::Op& op = plan_.ops[index];
      const std::vector<OperandUse> uses = read_uses(op, plan_.programs);
      check_fields(index);
      for (size_t i = 0; i < 32; ++i)
        if ((op.early >> i & 1) != 0) check_operand(index, i, uses);
      for (size_t i = 0; i < uses.size(); ++i)
        if (uses[i].write) writes_[memory_slot(plan_, op.operands[i].slot)].push_back({index, i});
    }
  }

 private:
  OpName name(size_t op) const { return describe(plan_, static_cast<int64_t>(op)); }

  /// The record's own words for it are set where the op is packed.
  void check_fields(size_t index) const {
    const abi::OpRecord& r = plan_.ops[index].record;
    const abi::Params& p = r.params;
    const bool rows = r.kind == abi::TaskKind::kMatmulRows, decode = r.kind == abi::TaskKind::kAttentionDecode;
    const bool tiles = r.kind == abi::TaskKind::kMatmulTile || r.kind == abi::TaskKind::kMatmulFloat ||
                       r.kind == abi::TaskKind::kMatmulSimple;
    require(plan_,
            !(rows && p.rows.weights_immutable != 0) &&
                !(tiles && (p.matmul.a_immutable | p.matmul.b_immutable) != 0) &&
                !(decode && p.attention.fresh_operand >= 0),
            name(index), ": its record says what is read before the waits, expected bits alone");
  }

  void check_operand(size_t index, size_t i, const std::vector<OperandUse>& uses) const {
    const plan::Op& op = plan_.ops[index];
    const bool read = i < uses.size() && uses[i].read && !uses[i].write && op.operands[i].slot != abi::kNoSlot;
    require(plan_, read, name(index), ": operand ", i, " of ", op.operands.size(),
            " is read before the waits, but not read");
    const uint32_t slot = op.operands[i].slot;
    const plan::Buffer& buffer = plan_.buffers[slot];
    const bool before = buffer.kind == plan::BufferKind::kInput || buffer.kind == plan::BufferKind::kConstant;
    require(plan_, before, name(index), " reads slot ", slot, " (", buffer.name,
            ") ahead of its waits, which is no input");
    for (const EarlyWrite& write : writes_[slot])
      require(plan_, leaves_rows(index, i, write), name(index), " reads slot ", slot, " (", buffer.name,
              ") ahead of its waits, but ", name(write.op), " writes it before");
  }

  /// Keys or values of a cache: the earlier op stores to rows from the position on alone.
  bool leaves_rows(size_t index, size_t operand, const EarlyWrite& write) const {
    const plan::Op &op = plan_.ops[index], &writer = plan_.ops[write.op];
    const bool cache = op.record.kind == abi::TaskKind::kAttentionDecode && op.operands.size() > Attention::kPosition &&
                       (op.early >> Attention::kPosition & 1) != 0 &&
                       (operand == Attention::kK || operand == Attention::kV);
    if (!cache) return false;
    const KeyRows rows = key_rows(plan_, index, operand);
    bool all = false, some = false;
    each_program(writer, [&](int number, int first) {
      for (const Instr& instr : plan_.programs[static_cast<size_t>(number)].instrs) {
        if (instr.op != Opcode::kStore || static_cast<size_t>(first + instr.operand) != write.operand) continue;
        const Program& program = plan_.programs[static_cast<size_t>(number)];
        all = stores_from(writer, program, first, instr, rows, op.operands[Attention::kPosition]) && (all || !some);
        some = true;
      }
    });
    return all;
  }

  /// Programs that store: of few rows the segments', else the record's own.
  template <class Visit>
  static void each_program(const plan::Op& op, const Visit& visit) {
    const abi::Params& p = op.record.params;
    switch (op.record.kind) {
      case abi::TaskKind::kPointwise:
      case abi::TaskKind::kRow:
      case abi::TaskKind::kColumn:
        return visit(p.program.program, p.program.first_operand);
      case abi::TaskKind::kMatmulTile:
      case abi::TaskKind::kMatmulFloat:
      case abi::TaskKind::kMatmulSimple:
        return visit(p.matmul.program, p.matmul.first_operand);
      case abi::TaskKind::kMatmulRows:
        for (int s = 0; s < p.rows.num_segments; ++s) visit(p.rows.segment[s].program, p.rows.segment[s].first_operand);
        return;
      case abi::TaskKind::kAttentionDecode:
      case abi::TaskKind::kAttentionForward:
      case abi::TaskKind::kAttentionBackwardRows:
      case abi::TaskKind::kAttentionBackward:
      case abi::TaskKind::kAttentionBackwardQuery:
      case abi::TaskKind::kAttentionSimple:
      case abi::TaskKind::kMaskRange:
      case abi::TaskKind::kScatterSum:
      case abi::TaskKind::kRowSelect:
      case abi::TaskKind::kRowDraw:
      case abi::TaskKind::kCount:
        return;
    }
  }

  const Plan& plan_;
  std::vector<std::vector<EarlyWrite>> writes_;  // per memory: by the ops so far
};

}  // namespace

void verify_early(const Plan& plan) { EarlyVerifier(plan).run(); }

}  // namespace ark::planner
