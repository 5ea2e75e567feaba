#include "planner/tile/send_by_batch.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "planner/tile/row_batches.h"

namespace ark::planner {
namespace {

/// An op that does nothing but store a slice of a tensor in each rank's box.
struct Send {
  size_t op;
  StorageId from;
  std::vector<uint32_t> boxes;  // by rank
};

bool is_plain(const Instr& instr) { return instr.a >= 0 && instr.b < 0 && instr.c < 0 && instr.d < 0; }

/// Slice number `rank` of `world` equal ones, from the tensor's first element on, as one run.
bool is_slice(const FusedGraph& graph, const FusedOp& op, const abi::Operand& from, const abi::Operand& box, int rank) {
  const Storage &whole = graph.storages[from.slot], &part = graph.storages[box.slot];
  const int64_t count = whole.num_elements / graph.world;
  const auto is_run = [&](const abi::Operand& x) { return x.stride[0] == 1 || count == 1; };
  return op.op.record.params.program.num_dims == 1 && op.op.record.size[0] == count && is_run(from) && is_run(box) &&
         whole.num_elements == count * graph.world && part.num_elements == count && part.dtype == whole.dtype &&
         from.offset == rank * count && box.offset == 0;
}

/// The op at `index`, if its program loads a value and stores it, once for every rank.
bool is_send(const FusedGraph& graph, size_t index, Send& send) {
  const FusedOp& op = graph.ops[index];
  if (op.op.record.kind != abi::TaskKind::kPointwise || !is_exchange(graph, op) || !op.after.empty()) return false;
  const Program& program = graph.programs[static_cast<size_t>(op.op.record.params.program.program)];
  if (program.instrs.size() != 2 * static_cast<size_t>(graph.world)) return false;
  send = {index, -1, std::vector<uint32_t>(static_cast<size_t>(graph.world), abi::kNoSlot)};
  const auto operand = [&](const Instr& i) -> const abi::Operand& {
    return op.op.operands[static_cast<size_t>(op.op.record.params.program.first_operand + i.operand)];
  };
  for (const Instr& store : program.instrs) {
    if (store.op == Opcode::kLoad) continue;
    if (store.op != Opcode::kStore || !is_plain(store)) return false;
    const Instr& load = program.instrs[static_cast<size_t>(store.a)];
    if (load.op != Opcode::kLoad || load.a >= 0 || load.b >= 0 || load.c >= 0) return false;
    const abi::Operand &from = operand(load), &box = operand(store);
    const int rank = graph.storages[box.slot].source;
    if (rank < 0 || rank >= graph.world || !is_slice(graph, op, from, box, rank)) return false;
    if (send.from >= 0 && send.from != static_cast<StorageId>(from.slot)) return false;
    send.from = static_cast<StorageId>(from.slot);
    send.boxes[static_cast<size_t>(rank)] = box.slot;
  }
  return std::ranges::find(send.boxes, abi::kNoSlot) == send.boxes.end();
}

/// The op that makes what is sent, if nothing else touches it; -1: there is no such op.
int64_t maker_of(const FusedGraph& graph, const Send& send) {
  const Storage& storage = graph.storages[static_cast<size_t>(send.from)];
  int64_t maker = -1;
  if (storage.input >= 0 || storage.returned || storage.exchange >= 0) return -1;
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    if (i == send.op) continue;
    for (size_t x = 0; x < graph.ops[i].op.operands.size(); ++x) {
      if (graph.ops[i].op.operands[x].slot != static_cast<uint32_t>(send.from)) continue;
      if (maker >= 0 || graph.ops[i].access[x] != Access::kWrite) return -1;
      maker = static_cast<int64_t>(i);
    }
  }
  return maker;
}

/// Number, in the program, of the one instruction that stores the product; -1: it is not stored as it is.
int store_of(const FusedGraph& graph, const FusedOp& op, StorageId to) {
  const abi::MatmulTileParams& p = op.op.record.params.matmul;
  const Program& program = graph.programs[static_cast<size_t>(p.program)];
  int found = -1;
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    const Instr& instr = program.instrs[i];
    if (instr.operand < 0 ||
        op.op.operands[static_cast<size_t>(p.first_operand + instr.operand)].slot != static_cast<uint32_t>(to))
      continue;
    if (found >= 0 || instr.op != Opcode::kStore || !is_plain(instr)) return -1;
    found = static_cast<int>(i);
  }
  return found;
}

/// The program with a store for each rank in place of one: batch r goes to operand r of `boxes`.
Program storing_by_batch(Program program, int store, const std::vector<int16_t>& boxes) {
  const Instr stored = program.instrs[static_cast<size_t>(store)];
  program.instrs.erase(program.instrs.begin() + store);
  for (Instr& instr : program.instrs)
    for (int16_t* arg : {&instr.a, &instr.b, &instr.c, &instr.d})
      if (*arg > store) --*arg;
  const auto add = [&](const Instr& instr) {
    program.instrs.push_back(instr);
    return static_cast<int16_t>(program.instrs.size() - 1);
  };
  const int16_t batch = add({.op = Opcode::kIndex, .dtype = DType::kI64, .aux = 0});
  for (size_t rank = 0; rank < boxes.size(); ++rank) {
    const int16_t number = add({.op = Opcode::kConst, .dtype = DType::kI64, .imm_int = static_cast<int64_t>(rank)});
    const int16_t is_its = add({.op = Opcode::kEq, .dtype = DType::kBool, .a = batch, .b = number});
    add({.op = Opcode::kStore, .dtype = stored.dtype, .a = stored.a, .d = is_its, .operand = boxes[rank]});
  }
  return program;
}

/// Rows of each rank; 0: the product stays as it is.
int64_t rows_of_rank(const FusedGraph& graph, const FusedOp& op, const Send& send, const Options& options) {
  const abi::MatmulTileParams& p = op.op.record.params.matmul;
  if (plan::kind_of(op.op.record).order != plan::Order::kGroupsOfM || p.batch != 1 || p.m % graph.world != 0) return 0;
  const int store = store_of(graph, op, send.from);
  if (store < 0) return 0;
  const Program& program = graph.programs[static_cast<size_t>(p.program)];
  const abi::Operand& out =
      op.op.operands[static_cast<size_t>(p.first_operand + program.instrs[static_cast<size_t>(store)].operand)];
  const bool last = p.first_operand + program.num_operands == static_cast<int>(op.op.operands.size());
  const bool whole = out.offset == 0 && out.stride[2] == 1 && out.stride[1] == p.n &&
                     graph.storages[out.slot].num_elements == int64_t{p.m} * p.n;
  const size_t bytes = sizeof(abi::OpRecord) + (op.op.operands.size() + send.boxes.size()) * sizeof(abi::Operand);
  if (!last || !whole || bytes > abi::kMaxRecordBytes) return 0;
  const int64_t rows = p.m / graph.world;
  return can_batch_rows(graph, op, rows, options) ? rows : 0;
}

void store_in_boxes(FusedGraph& graph, FusedOp& op, const Send& send, int64_t rows) {
  abi::MatmulTileParams& p = op.op.record.params.matmul;
  const Program& old = graph.programs[static_cast<size_t>(p.program)];
  const int store = store_of(graph, op, send.from);
  const int16_t first = old.instrs[static_cast<size_t>(store)].operand;
  std::vector<int16_t> boxes = {first};
  for (size_t rank = 1; rank < send.boxes.size(); ++rank)
    boxes.push_back(static_cast<int16_t>(old.num_operands + static_cast<int>(rank) - 1));
  Program program = storing_by_batch(old, store, boxes);
  program.num_operands += static_cast<int>(boxes.size()) - 1;
  batch_rows(graph, op, rows);
  abi::Operand out = op.op.operands[static_cast<size_t>(p.first_operand + first)];
  out.stride[0] = 0;
  for (size_t rank = 0; rank < boxes.size(); ++rank) {
    out.slot = send.boxes[rank];
    if (rank > 0) op.op.operands.push_back(out), op.access.push_back(Access::kWrite);
    op.op.operands[static_cast<size_t>(p.first_operand + boxes[rank])] = out;
  }
  const int number = number_of(graph.programs, std::move(program));
  std::ranges::replace(op.op.programs, p.program, number);
  p.program = number;
  op.op.name += "+" + graph.ops[send.op].op.name;
}

void erase_op(FusedGraph& graph, size_t op) {
  graph.ops.erase(graph.ops.begin() + static_cast<std::ptrdiff_t>(op));
  for (FusedOp& later : graph.ops)
    for (int32_t& before : later.after)
      if (before > static_cast<int32_t>(op)) --before;
}

}  // namespace

void send_by_batch(FusedGraph& graph, const Options& options) {
  if (has_uneven(graph)) return;
  if (graph.world == 1 || has_several_groups(graph)) return;
  for (size_t i = 0; i < graph.ops.size();) {
    Send send;
    const int64_t maker = is_send(graph, i, send) ? maker_of(graph, send) : -1;
    const int64_t rows = maker < 0 ? 0 : rows_of_rank(graph, graph.ops[static_cast<size_t>(maker)], send, options);
    if (rows == 0) {
      ++i;
      continue;
    }
    store_in_boxes(graph, graph.ops[static_cast<size_t>(maker)], send, rows);
    erase_op(graph, i);
  }
}

}  // namespace ark::planner
