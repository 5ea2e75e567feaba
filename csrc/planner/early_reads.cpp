#include "planner/early_reads.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "device/abi/roles.h"
#include "plan/early_reads.h"
#include "plan/params.h"
#include "planner/cache_rows.h"

namespace ark::planner {
namespace {

using X = abi::AttentionOperand;

class EarlyReads {
 public:
  explicit EarlyReads(FusedGraph& graph)
      : graph_(graph), writers_(graph.storages.size()), first_write_(graph.storages.size(), kNever) {
    for (size_t i = graph.ops.size(); i-- > 0;)
      for_each_write(i, [&](size_t, uint32_t slot) { first_write_[slot] = i; });
  }

  void run() {
    for (size_t i = 0; i < graph_.ops.size(); ++i) {
      mark(i);
      if (graph_.ops[i].op.record.kind == abi::TaskKind::kAttentionDecode) find_position(i);
      for_each_write(i, [&](size_t x, uint32_t slot) { writers_[slot].push_back({i, x}); });
    }
  }

 private:
  static constexpr size_t kNever = std::numeric_limits<size_t>::max();
  struct Touch {
    size_t op, operand;
  };

  template <class Visit>
  void for_each_write(size_t op, const Visit& visit) const {
    const FusedOp& f = graph_.ops[op];
    for (size_t x = 0; x < f.access.size(); ++x) {
      const uint32_t slot = f.op.operands[x].slot;
      const bool writes = f.access[x] == Access::kWrite || f.access[x] == Access::kReadWrite;
      if (writes && slot != abi::kNoSlot) visit(x, slot);
    }
  }

  void mark(size_t index) {
    FusedOp& op = graph_.ops[index];
    op.op.early = 0;
    for (size_t x = 0; x < std::min(op.access.size(), plan::kEarlyOperands); ++x) {
      const uint32_t slot = op.op.operands[x].slot;
      if (op.access[x] != Access::kRead || slot == abi::kNoSlot) continue;
      if (graph_.storages[slot].input >= 0 && first_write_[slot] == kNever) op.op.early |= 1u << x;
    }
  }

  // ---- decode attention ----

  void find_position(size_t index) {
    const std::optional<Scalar> of_keys = rows_begin(index, X::kK), of_values = rows_begin(index, X::kV);
    if (!of_keys || !of_values || !(*of_keys == *of_values)) return;
    if (graph_.storages[of_keys->slot].input < 0 || first_write_[of_keys->slot] <= last_reader(index)) return;
    set_position(index, *of_keys);
  }

  /// The scalar below which no op so far has written rows of the keys or values.
  std::optional<Scalar> rows_begin(size_t index, size_t operand) const {
    const plan::Op& op = graph_.ops[index].op;
    const uint32_t slot = op.operands[operand].slot;
    const std::optional<CacheRows> rows = cache_rows(op, operand);
    if (!rows || graph_.storages[slot].input < 0) return std::nullopt;
    std::optional<Scalar> begin;
    for (const Touch& touch : writers_[slot]) {
      const std::optional<Scalar> own = stored_from(graph_.ops[touch.op].op, graph_.programs, touch.operand, *rows);
      if (!own || (begin && !(*begin == *own))) return std::nullopt;
      begin = own;
    }
    return begin;
  }

  /// Calls visit(op, operand of its program's parts) for the instructions that combine what an attention left in parts.
  template <class Visit>
  void for_each_combination(size_t attention, const Visit& visit) {
    const uint32_t sums = graph_.ops[attention].op.operands[X::kPartsMaxSum].slot;
    if (sums == abi::kNoSlot) return;
    for (size_t i = attention + 1; i < graph_.ops.size(); ++i) {
      FusedOp& op = graph_.ops[i];
      plan::for_each_program(op.op.record, [&](int number, int first, ProgramKind) {
        if (number < 0) return;
        for (const Instr& instr : graph_.programs[static_cast<size_t>(number)].instrs) {
          const auto at = static_cast<size_t>(first + instr.operand);
          if (instr.op == Opcode::kLoadParts && op.op.operands.at(at + abi::PartsOperand::kMaxSum).slot == sums)
            visit(i, at);
        }
      });
    }
  }

  size_t last_reader(size_t attention) {
    size_t last = attention;
    for_each_combination(attention, [&](size_t op, size_t) { last = std::max(last, op); });
    return last;
  }

  void set_position(size_t index, const Scalar& position) {
    FusedOp& op = graph_.ops[index];
    abi::Operand x{};
    x.vector = 1, x.index_operand = -1;
    op.op.operands.resize(X::kCount, x);
    op.access.resize(X::kCount, Access::kRead);
    set_operand(op, X::kPosition, position);
    op.op.early |= 1u << X::kK | 1u << X::kV | 1u << X::kPosition;
    for_each_combination(index, [&](size_t other, size_t parts) {
      set_operand(graph_.ops[other], parts + abi::PartsOperand::kPosition, position);
    });
  }

  void set_operand(FusedOp& op, size_t operand, const Scalar& position) {
    const bool reads = std::ranges::any_of(op.op.operands, [&](const auto& x) { return x.slot == position.slot; });
    abi::Operand& x = op.op.operands[operand];
    x.slot = position.slot;
    x.dtype = static_cast<short>(DType::kI64);
    x.offset = position.offset;
    if (!reads) op.op.bytes += size_bytes(DType::kI64);
  }

  FusedGraph& graph_;
  std::vector<std::vector<Touch>> writers_;  // per storage: by the ops so far
  std::vector<size_t> first_write_;          // per storage: op of all
};

}  // namespace

void early_reads(FusedGraph& graph) { EarlyReads(graph).run(); }

}  // namespace ark::planner
