// Products with own rows: batch b of operand a is what rank b has sent, and the own rank's batch is read where that
// rank has it (abi::MatmulTileParams). All ranks run the plan, and none knows its rank: each batch must be right
// through the box and through the own operand. So the op that sends has to copy the one to the other, and nothing may
// write the source between the two. Waits for one rank alone say that its box is there and nothing else
// (verify/memory.cpp).
#include <algorithm>

#include "device/abi/roles.h"
#include "planner/verify/checks.h"
#include "planner/verify/counter_blocks.h"
#include "planner/verify/uses.h"

namespace ark::planner {
namespace {

using plan::Buffer;
using plan::BufferKind;
using plan::Plan;
using Matmul = abi::MatmulOperand;

bool of_source(const abi::Wait& wait) { return wait.role == static_cast<int32_t>(abi::WaitRole::kSource); }

class OwnRowsCheck {
 public:
  OwnRowsCheck(const Plan& plan, size_t index)
      : plan_(plan),
        index_(index),
        op_(plan.ops[index]),
        a_(op_.operands[Matmul::kA]),
        own_(op_.operands[Matmul::kOwn]) {}

  void run() const {
    need(plan_.world > 1 && plan_.more_groups.empty() && op_.record.grid[abi::GridAxis::kBatch] == plan_.world,
         "a batch for each of ", plan_.world, " ranks");
    need(a_.slot != abi::kNoSlot && own_.slot != abi::kNoSlot && boxes().kind == BufferKind::kBoxes,
         "operand a to be all boxes of an exchange");
    check_rows();
    const size_t sender = static_cast<size_t>(boxes().first_op);
    need(sender < index_, "what an earlier op sends");
    check_copy(plan_.ops[sender]);
    for (size_t i = sender; i <= index_; ++i) check_kept(i);
    for (int w = 0; w < op_.record.num_waits; ++w)
      if (of_source(op_.record.wait[w])) check_wait(op_.record.wait[w], plan_.ops[sender].record);
  }

 private:
  template <class... Args>
  void need(bool condition, const Args&... expected) const {
    require(plan_, condition, describe(plan_, static_cast<int64_t>(index_)), " has own rows, expected ", expected...);
  }
  const Buffer& boxes() const { return plan_.buffers[a_.slot]; }
  int64_t box_elements() const { return boxes().size_bytes / plan_.world / size_bytes(static_cast<DType>(a_.dtype)); }

  /// Batch b lies in box b, and the own operand has the same rows.
  void check_rows() const {
    const abi::MatmulTileParams& p = op_.record.params.matmul;
    const bool forwards = a_.offset >= 0 && a_.stride[1] >= 0 && a_.stride[2] >= 0;
    const int64_t last = a_.offset + (p.m - 1) * a_.stride[1] + (p.k - 1) * a_.stride[2];
    need(forwards && a_.stride[0] == box_elements() && last < box_elements(), "batch b of operand a in box b");
    need(own_.stride[0] == 0 && own_.stride[1] == a_.stride[1] && own_.stride[2] == a_.stride[2] &&
             own_.dtype == a_.dtype,
         "the own operand to be as one batch of operand a");
  }

  /// Each box holds, element by element, what the own operand names.
  void check_copy(const plan::Op& sender) const {
    const abi::ProgramParams& p = sender.record.params.program;
    need(sender.record.kind == abi::TaskKind::kPointwise && p.num_dims == 1 && sender.record.size[0] == box_elements(),
         "the op that sends to copy whole boxes");
    int boxes_written = 0;
    const Program& program = plan_.programs[static_cast<size_t>(p.program)];
    const auto operand = [&](const Instr& i) -> const abi::Operand& {
      return sender.operands[static_cast<size_t>(p.first_operand + i.operand)];
    };
    for (const Instr& store : program.instrs) {
      if (store.op != Opcode::kStore) continue;
      const abi::Operand& box = operand(store);
      const Buffer& out = plan_.buffers[box.slot];
      if (out.kind != BufferKind::kBoxOut || exchange_of(out) != exchange_of(boxes())) continue;
      ++boxes_written;
      need(store.a >= 0 && store.b < 0 && store.c < 0 && store.d < 0, "a box to be stored as it is");
      const Instr& load = program.instrs[static_cast<size_t>(store.a)];
      need(load.op == Opcode::kLoad && load.a < 0 && load.b < 0 && load.c < 0 && load.d < 0, "a copy in each box");
      const abi::Operand& from = operand(load);
      need(from.slot == own_.slot && from.dtype == own_.dtype && box.dtype == own_.dtype && from.index_operand < 0 &&
               box.index_operand < 0 && from.stride[0] == 1 && box.stride[0] == 1 && box.offset == 0 &&
               from.offset + a_.offset == own_.offset,
           "slot ", own_.slot, " from element ", own_.offset - a_.offset, " on in each box");
    }
    need(boxes_written == plan_.world, "copies in ", plan_.world, " boxes, got ", boxes_written);
  }

  /// An op from the one that sends on writes nothing of what the own operand reads.
  void check_kept(size_t i) const {
    const std::vector<Use> read = uses_of(plan_, index_, read_uses(op_, plan_.programs));
    const auto own = std::find_if(read.begin(), read.end(), [](const Use& use) { return use.operand == Matmul::kOwn; });
    if (own == read.end()) return;
    for (const Use& use : uses_of(plan_, i, read_uses(plan_.ops[i], plan_.programs))) {
      if (!use.how.write || !same_memory(use.slot, own->slot)) continue;
      need(use.high <= own->low || own->high <= use.low, "its own rows to stay as they were sent, ",
           describe(plan_, static_cast<int64_t>(i)), " writes bytes ", use.low, " to ", use.high - 1, " of slot ",
           use.slot);
    }
  }
  bool same_memory(uint32_t a, uint32_t b) const {
    const auto in_arena = [&](uint32_t slot) { return plan_.buffers[slot].kind == BufferKind::kArena; };
    return memory_slot(plan_, a) == memory_slot(plan_, b) || (in_arena(a) && in_arena(b));
  }

  /// The same rows of each rank's counters, all of them of the op that sends.
  void check_wait(const abi::Wait& wait, const abi::OpRecord& sender) const {
    need(wait.rank_stride != 0 && wait.coef[0] == 0, "a wait for one rank that is alike for all");
    const auto first = static_cast<int64_t>(wait.counter), end = first + num_counters(wait);
    const bool sent = std::any_of(sender.arrive, sender.arrive + sender.num_arrivals, [&](const abi::Arrive& arrive) {
      return first >= arrive.counter && end <= int64_t{arrive.counter} + num_counters(arrive);
    });
    need(sent, "a wait for one rank to be for what it sends here");
  }

  const Plan& plan_;
  size_t index_;
  const plan::Op& op_;
  const abi::Operand &a_, &own_;
};

}  // namespace

void verify_own_rows(const Plan& plan) {
  for (size_t i = 0; i < plan.ops.size(); ++i) {
    const abi::OpRecord& r = plan.ops[i].record;
    const bool own = abi::has_own_rows(r), source = std::any_of(r.wait, r.wait + r.num_waits, of_source);
    require(plan, own || !source, describe(plan, static_cast<int64_t>(i)), " waits for the rank of its batch alone");
    if (own) OwnRowsCheck(plan, i).run();
  }
  for (const std::vector<abi::WorkItem>& list : plan.lists)
    for (const abi::WorkItem& item : list) {
      const abi::OpRecord& r = plan.ops[static_cast<size_t>(item.op)].record;
      const int64_t of_batch = int64_t{r.grid[abi::GridAxis::kRowBlock]} * r.grid[abi::GridAxis::kColumnBlock],
                    last = int64_t{item.first} + item.count - 1;
      require(plan, !abi::has_own_rows(r) || item.first / of_batch == last / of_batch, describe(plan, item.op),
              " has own rows, expected items of one batch, got tiles ", item.first, " to ", last);
    }
}

}  // namespace ark::planner
