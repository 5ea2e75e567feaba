#include "planner/tile/own_rows.h"

#include <optional>

#include "planner/tile/align_operands.h"

namespace ark::planner {
namespace {

using X = abi::MatmulOperand;

const abi::Operand& operand_of(const FusedOp& op, const Instr& instr) {
  return op.op.operands[static_cast<size_t>(op.op.record.params.program.first_operand + instr.operand)];
}

bool writes(const FusedOp& op, uint32_t slot) {
  for (size_t x = 0; x < op.access.size(); ++x)
    if (op.op.operands[x].slot == slot && op.access[x] != Access::kRead && op.access[x] != Access::kParameters)
      return true;
  return false;
}

/// The op before `end` that writes to these boxes.
std::optional<size_t> sender_of(const FusedGraph& graph, uint32_t boxes, size_t end) {
  for (size_t i = end; i-- > 0;)
    if (writes(graph.ops[i], boxes)) return i;
  return std::nullopt;
}

/// What the op copies to each of the boxes, element by element from `offset` on, as one run; null: it does something
/// else.
const abi::Operand* copied_to(const FusedGraph& graph, const FusedOp& op, uint32_t boxes) {
  const abi::OpRecord& r = op.op.record;
  const int64_t count = graph.storages[boxes].num_elements / graph.world;
  if (r.kind != abi::TaskKind::kPointwise || r.params.program.num_dims != 1 || r.size[0] != count) return nullptr;
  const Program& program = graph.programs[static_cast<size_t>(r.params.program.program)];
  const abi::Operand* source = nullptr;
  for (const Instr& store : program.instrs) {
    if (store.op != Opcode::kStore || operand_of(op, store).slot != boxes) continue;
    const abi::Operand& box = operand_of(op, store);
    if (store.a < 0 || store.b >= 0 || store.c >= 0 || store.d >= 0) return nullptr;
    const Instr& load = program.instrs[static_cast<size_t>(store.a)];
    if (load.op != Opcode::kLoad || load.a >= 0 || load.b >= 0 || load.c >= 0 || load.d >= 0) return nullptr;
    const abi::Operand& from = operand_of(op, load);
    const bool run = from.stride[0] == 1 && box.stride[0] == 1 && box.offset % count == 0 && from.dtype == box.dtype;
    if (!run || from.index_operand >= 0 || (source != nullptr && source != &from)) return nullptr;
    source = &from;
  }
  return source;
}

}  // namespace

void read_own_rows(FusedGraph& graph, size_t index) {
  FusedOp& op = graph.ops[index];
  abi::MatmulTileParams& p = op.op.record.params.matmul;
  const abi::Operand& a = op.op.operands[X::kA];
  const size_t bytes = sizeof(abi::OpRecord) + (op.op.operands.size() + 1) * sizeof(abi::Operand);
  if (op.op.record.kind != abi::TaskKind::kMatmulTile || p.first_operand != X::kCount || bytes > abi::kMaxRecordBytes)
    return;
  if (has_several_groups(graph)) return;
  const std::optional<size_t> sender = sender_of(graph, a.slot, index);
  const abi::Operand* const source = sender ? copied_to(graph, graph.ops[*sender], a.slot) : nullptr;
  if (source == nullptr || source->dtype != a.dtype || graph.storages[source->slot].exchange >= 0) return;
  abi::Operand own = a;
  own.slot = source->slot;
  own.offset = source->offset + a.offset;
  own.vector = source->vector;
  own.stride[0] = 0;
  if (!tma_addressable(own, 1, 2, 1) || !tma_addressable(a, 1, 2, 1)) return;
  for (size_t i = *sender; i <= index; ++i)
    if (writes(graph.ops[i], own.slot)) return;
  op.op.operands.insert(op.op.operands.begin() + X::kOwn, own);
  op.access.insert(op.access.begin() + X::kOwn, Access::kRead);
  p.own_rows = 1;
  p.first_operand = X::kOwn + 1;
  for (abi::Operand& x : op.op.operands)
    if (x.index_operand >= X::kOwn) ++x.index_operand;
}

}  // namespace ark::planner
