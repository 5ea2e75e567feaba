#include "planner/background.h"

#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "device/abi/roles.h"

namespace ark::planner {
namespace {

constexpr int64_t kVectorBytes = 16;
constexpr size_t kMostOperands = 32;  // a lane of the warp that copies knows where one begins

const abi::Operand& operand_of(const FusedOp& op, const Instr& instr) {
  return op.op.operands[static_cast<size_t>(op.op.record.params.program.first_operand + instr.operand)];
}

/// Loads and stores without indices or conditions, each stored value as it was loaded.
bool only_copies(const Program& program) {
  return std::ranges::all_of(program.instrs, [&](const Instr& i) {
    if (i.op == Opcode::kLoad) return i.a < 0 && i.b < 0 && i.c < 0 && i.d < 0;
    if (i.op != Opcode::kStore || i.a < 0 || i.b >= 0 || i.c >= 0 || i.d >= 0) return false;
    const Instr& loaded = program.instrs[static_cast<size_t>(i.a)];
    return loaded.op == Opcode::kLoad && loaded.dtype == i.dtype;
  });
}

/// The operand before it that is no box.
int source_of(const FusedGraph& graph, const FusedOp& op, int box) {
  int x = box - 1;
  while (x >= 0 && graph.storages[op.op.operands[static_cast<size_t>(x)].slot].exchange >= 0) --x;
  return x;
}

bool is_run(const FusedGraph& graph, const FusedOp& op, const abi::Operand& x) {
  const int64_t bytes = size_bytes(static_cast<DType>(x.dtype));
  return x.stride[0] == 1 && x.offset * bytes % kVectorBytes == 0 && x.index_operand < 0 &&
         graph.storages[x.slot].dtype == static_cast<DType>(x.dtype) && x.dtype == op.op.operands.front().dtype;
}

}  // namespace

bool copies_to_boxes(const FusedGraph& graph, const FusedOp& op) {
  const abi::OpRecord& r = op.op.record;
  const abi::ProgramParams& p = r.params.program;
  if (r.kind != abi::TaskKind::kPointwise || !is_exchange(graph, op) || p.num_dims != 1 || p.first_operand != 0 ||
      op.op.operands.size() > kMostOperands)
    return false;
  const Program& program = graph.programs[static_cast<size_t>(p.program)];
  if (!only_copies(program) || static_cast<size_t>(program.num_operands) != op.op.operands.size()) return false;
  for (const abi::Operand& x : op.op.operands)
    if (x.slot == abi::kNoSlot || !is_run(graph, op, x)) return false;
  if (r.size[0] * size_bytes(static_cast<DType>(op.op.operands.front().dtype)) % kVectorBytes != 0) return false;
  return std::ranges::all_of(program.instrs, [&](const Instr& i) {
    const bool box = graph.storages[operand_of(op, i).slot].exchange >= 0;
    if (i.op == Opcode::kLoad) return !box;
    return box && source_of(graph, op, i.operand) == program.instrs[static_cast<size_t>(i.a)].operand;
  });
}

int64_t sent_element_bytes(const FusedGraph& graph, const FusedOp& op) {
  for (size_t x = 0; x < op.access.size(); ++x) {
    const uint32_t slot = op.op.operands[x].slot;
    if (op.access[x] == Access::kWrite && slot != abi::kNoSlot && graph.storages[slot].exchange >= 0)
      return size_bytes(graph.storages[slot].dtype);
  }
  throw InternalError(cat("op '", op.op.name, "' sends nothing"));
}

bool may_send_in_background(const FusedGraph& graph, const FusedOp& op) {
  return !graph.loop.any() && !has_several_groups(graph) && copies_to_boxes(graph, op) &&
         std::ranges::all_of(op.op.operands, [](const abi::Operand& x) {
           return x.vector * size_bytes(static_cast<DType>(x.dtype)) >= kVectorBytes;
         });
}

bool own_box_is_read(const FusedGraph& graph, const FusedOp& sender) {
  const std::vector<abi::Operand>& sent = sender.op.operands;
  int64_t next = 0;  // rank whose box stands behind the ones before
  for (size_t i = 0; i < sent.size(); ++i) {
    const Storage& boxes = graph.storages[sent[i].slot];
    if (boxes.exchange < 0) {
      if (i > 0 && next != graph.world) return true;
      next = 0;
      continue;
    }
    if (!boxes.joined_boxes() || sent[i].offset != next++ * (boxes.num_elements / graph.world)) return true;
    for (const FusedOp& op : graph.ops)
      for (size_t x = 0; x < op.op.operands.size(); ++x)
        if (op.op.operands[x].slot == sent[i].slot && op.access[x] == Access::kRead &&
            !(abi::has_own_rows(op.op.record) && x == abi::MatmulOperand::kA))
          return true;
  }
  return next != graph.world;
}

}  // namespace ark::planner
