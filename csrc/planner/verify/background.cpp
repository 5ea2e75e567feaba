// Ops in the background. Who sends them does not run their programs: it copies runs of 16-byte vectors from each source
// to the boxes that stand behind it (device/loop/background.cuh). So the program has to say just that.
#include "device/abi/roles.h"
#include "planner/verify/checks.h"

namespace ark::planner {
namespace {

using plan::BufferKind;
using plan::Plan;

class BackgroundCheck {
 public:
  BackgroundCheck(const Plan& plan, size_t index)
      : plan_(plan), index_(static_cast<int64_t>(index)), op_(plan.ops[index]) {}

  void run() const {
    const abi::ProgramParams& p = op_.record.params.program;
    need(plan_.world > 1 && plan_.more_groups.empty() && plan_.loop.carried.empty(),
         "of a plan with exchanges that is no loop");
    need(op_.record.kind == abi::TaskKind::kPointwise && p.num_dims == 1 && p.first_operand == 0,
         "a pointwise op of one dimension");
    need(!op_.flags.any(), "without flags");
    need(!op_.operands.empty() && op_.operands.size() <= 32, "1 to 32 operands, got ", op_.operands.size());
    need(op_.record.size[0] * bytes() % 16 == 0 && p.tile * bytes() % 16 == 0, "of whole vectors of 16 bytes");
    need(p.tile * bytes() / 16 <= INT16_MAX, "tiles of at most ", INT16_MAX, " vectors, got ", p.tile * bytes() / 16);
    for (size_t i = 0; i < op_.operands.size(); ++i) check_run(i);
    check_program(plan_.programs[static_cast<size_t>(p.program)]);
    if (op_.record.background == abi::kToOthers) check_own_boxes();
  }

 private:
  template <class... Args>
  void need(bool condition, const Args&... expected) const {
    require(plan_, condition, describe(plan_, index_), " is in the background, expected ", expected...);
  }
  int64_t bytes() const { return op_.operands.empty() ? 1 : size_bytes(static_cast<DType>(op_.operands[0].dtype)); }
  bool is_box(size_t i) const { return plan_.buffers[op_.operands[i].slot].kind == BufferKind::kBoxOut; }

  void check_run(size_t i) const {
    const abi::Operand& x = op_.operands[i];
    need(x.slot != abi::kNoSlot && x.dtype == op_.operands[0].dtype && x.index_operand < 0,
         "operands of one type, operand ", i, " differs");
    need(x.stride[0] == 1 && x.vector * bytes() >= 16 && x.offset * bytes() % 16 == 0, "operand ", i,
         " to be a run of vectors of 16 bytes");
    need(!plan::is_read_box(plan_.buffers[x.slot].kind), "operand ", i, " to be no box of this rank");
  }

  /// Each box holds, as it was loaded, the element of the source before it.
  void check_program(const Program& program) const {
    need(static_cast<size_t>(program.num_operands) == op_.operands.size(), "operands of the program alone, ",
         program.num_operands, " of ", op_.operands.size());
    std::vector<int> stored(op_.operands.size(), 0), loaded = stored;
    for (const Instr& i : program.instrs) {
      const bool store = i.op == Opcode::kStore;
      need(store || i.op == Opcode::kLoad, "loads and stores alone");
      need(i.b < 0 && i.c < 0 && i.d < 0 && (store || i.a < 0), "no index and no condition");
      const auto x = static_cast<size_t>(i.operand);
      need(is_box(x) == store && static_cast<int>(i.dtype) == op_.operands[x].dtype, "operand ", x,
           " moved as it is, from a source or to a box");
      if (!store) ++loaded[x];
      if (!store) continue;
      ++stored[x];
      size_t source = x;
      while (source > 0 && is_box(source)) --source;
      const Instr& value = program.instrs[static_cast<size_t>(i.a)];
      need(value.op == Opcode::kLoad && static_cast<size_t>(value.operand) == source, "operand ", x,
           " to be what operand ", source, " holds");
    }
    for (size_t x = 0; x < stored.size(); ++x)
      need(is_box(x) ? stored[x] == 1 : loaded[x] > 0, "operand ", x, " to be stored once, or to be read");
  }

  /// No rank reads its own box, and behind each source stand the boxes of all ranks in their order.
  void check_own_boxes() const {
    int next = plan_.world;
    for (size_t i = 0; i < op_.operands.size(); ++i) {
      const plan::Buffer& b = plan_.buffers[op_.operands[i].slot];
      need(is_box(i) ? b.index == next : next == plan_.world, "the boxes of all ranks behind each source, operand ", i);
      next = is_box(i) ? next + 1 : 0;
      if (is_box(i)) check_readers(exchange_of(b));
    }
    need(next == plan_.world, "the boxes of all ranks behind each source");
  }
  void check_readers(const ExchangeKey& exchange) const {
    for (size_t reader = 0; reader < plan_.ops.size(); ++reader) {
      const plan::Op& op = plan_.ops[reader];
      for (size_t x = 0; x < op.operands.size(); ++x) {
        if (op.operands[x].slot == abi::kNoSlot) continue;
        const plan::Buffer& b = plan_.buffers[op.operands[x].slot];
        if (!plan::is_read_box(b.kind) || exchange_of(b) != exchange) continue;
        need(abi::has_own_rows(op.record) && x == abi::MatmulOperand::kA, "nobody to read the own rank's box, ",
             describe(plan_, static_cast<int64_t>(reader)), " does");
      }
    }
  }

  const Plan& plan_;
  int64_t index_;
  const plan::Op& op_;
};

}  // namespace

void verify_background(const Plan& plan) {
  for (size_t i = 0; i < plan.ops.size(); ++i) {
    require(plan, plan.ops[i].record.background >= 0 && plan.ops[i].record.background <= abi::kToOthers,
            describe(plan, static_cast<int64_t>(i)), ": background ", plan.ops[i].record.background, ", expected 0 to ",
            abi::kToOthers);
    if (plan.ops[i].record.background != 0) BackgroundCheck(plan, i).run();
  }
  for (const std::vector<abi::WorkItem>& list : plan.lists)
    for (const abi::WorkItem& item : list)
      require(plan, plan.ops[static_cast<size_t>(item.op)].record.background == 0 || item.count == 1,
              describe(plan, item.op), " is in the background, expected items of one tile, got ", item.count);
}

}  // namespace ark::planner
