// What the loop kernel runs of a plan with flagged words (flag_words.h), proved from its meaning alone: every word has
// one writer, which writes it in every launch; everybody who touches such a buffer polls (or flags) its words, after
// the writer; the waits that are left come out and order everything else.
#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "base/types.h"
#include "planner/verify/checks.h"
#include "planner/verify/uses.h"

namespace ark::planner {
namespace {

using plan::Plan;

bool has_bit(uint32_t mask, size_t i) { return i < 32 && (mask >> i & 1) != 0; }
bool is_flagged(const Plan& plan, size_t op, size_t operand) { return has_bit(plan.ops[op].flags.operands, operand); }

/// Words lie inside of their area, at multiples of 16 bytes, and belong to one buffer each: a word of two buffers would
/// carry this launch's number before its reader's element is there.
void check_words(const Plan& plan) {
  require(plan, plan.world == 1, "flagged words in a plan with exchanges");
  struct Range {
    int64_t begin, end;
    size_t slot;
  };
  std::vector<Range> ranges;
  for (size_t slot = 0; slot < plan.buffers.size(); ++slot) {
    const int64_t begin = plan.buffers[slot].first_word;
    if (begin < 0) continue;
    const int64_t end = begin + plan.buffers[slot].size_bytes / 2;
    require(plan, begin % 4 == 0 && end <= plan.num_flag_words, "slot ", slot, " has flagged words ", begin, " to ",
            end, " of ", plan.num_flag_words);
    require(plan, plan.buffers[slot].kind == plan::BufferKind::kArena, "slot ", slot,
            " is flagged, but others see it too");
    ranges.push_back({begin, end, slot});
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < ranges.size(); ++i)
    require(plan, ranges[i - 1].end <= ranges[i].begin, "slots ", ranges[i - 1].slot, " and ", ranges[i].slot,
            " share flagged words");
  require(plan, plan.num_flag_words % abi::kCounterStride == 0, plan.num_flag_words, " flagged words");
}

/// The kinds and types whose code flags and polls.
void check_operand(const Plan& plan, size_t index, size_t i, bool flagged, bool words) {
  const plan::Op& op = plan.ops[index];
  const abi::Operand& x = op.operands[i];
  const auto name = [&] { return describe(plan, static_cast<int64_t>(index)); };
  require(plan, flagged == words, name(), ", operand ", i, flagged ? " is flagged, slot " : " is not flagged, slot ",
          x.slot, words ? " is" : " is not");
  if (!flagged) return;
  const bool half = x.dtype == static_cast<int>(DType::kBF16) || x.dtype == static_cast<int>(DType::kF16);
  const bool few = op.record.kind == abi::TaskKind::kMatmulRows && op.record.params.rows.m == 1;
  require(plan, half && few && x.index_operand < 0, name(), ", operand ", i, " cannot be flagged");
}

/// Who touches a flagged buffer: first one op that writes all of it, then readers that poll.
void check_uses(const Plan& plan) {
  std::vector<int> writer(plan.buffers.size(), -1);
  for (size_t index = 0; index < plan.ops.size(); ++index) {
    const auto name = [&] { return describe(plan, static_cast<int64_t>(index)); };
    const std::vector<OperandUse> uses = read_uses(plan.ops[index], plan.programs);
    for (size_t i = 0; i < uses.size(); ++i) {
      const uint32_t slot = plan.ops[index].operands[i].slot;
      const bool words = slot != abi::kNoSlot && plan.buffers[slot].first_word >= 0;
      if (uses[i].used())
        check_operand(plan, index, i, is_flagged(plan, index, i), words);
      else
        require(plan, !is_flagged(plan, index, i), name(), ", operand ", i, " is flagged and not used");
    }
    for (const Use& use : uses_of(plan, index, uses)) {
      if (plan.buffers[use.slot].first_word < 0) continue;
      if (use.how.read)
        require(plan, writer[use.slot] >= 0 && !use.how.write, name(), " polls slot ", use.slot,
                ", which no op before it writes");
      if (!use.how.write) continue;
      require(plan, writer[use.slot] < 0, name(), " writes slot ", use.slot, ", which op ", writer[use.slot],
              " writes");
      const int64_t low = use.low - use.place, high = use.high - use.place;
      require(plan, use.dense && low == 0 && high == plan.buffers[use.slot].size_bytes, name(),
              " may leave words of slot ", use.slot, " as an older launch wrote them");
      writer[use.slot] = static_cast<int>(index);
    }
  }
}

/// The plan without its flagged accesses, with the waits that are left.
Plan rest_of(const Plan& plan) {
  Plan rest = plan;
  for (size_t index = 0; index < rest.ops.size(); ++index) {
    plan::Op& op = rest.ops[index];
    const plan::Flags flags = std::exchange(op.flags, {});
    for (size_t i = 0; i < op.operands.size(); ++i)
      if (has_bit(flags.operands, i)) op.operands[i].slot = abi::kNoSlot;
    const abi::OpRecord whole = op.record;
    std::vector<abi::Wait> waits;
    for (int i = 0; i < whole.num_waits; ++i)
      if (!has_bit(flags.dropped_waits, static_cast<size_t>(i))) waits.push_back(whole.wait[i]);
    waits.insert(waits.end(), flags.added_waits.begin(), flags.added_waits.end());
    std::copy(waits.begin(), waits.end(), op.record.wait);
    op.record.num_waits = static_cast<int32_t>(waits.size());
    op.record.num_arrivals = 0;
    for (int i = 0; i < whole.num_arrivals; ++i) {
      if (has_bit(flags.dropped_arrivals, static_cast<size_t>(i))) continue;
      op.record.arrive_rank_stride[op.record.num_arrivals] = whole.arrive_rank_stride[i];
      op.record.arrive[op.record.num_arrivals++] = whole.arrive[i];
    }
  }
  return rest;
}

/// Of a few-row product: whether all weights are read before the waits, and whether its prologue needs none of them:
/// it reads words, and beside them what is read early alone.
std::pair<bool, bool> read_early(const plan::Op& op) {
  const abi::MatmulRowsParams& p = op.record.params.rows;
  bool weights = true, prologue = true, words = false;
  for (int s = 0; s < p.num_segments; ++s)
    for (const int weight : {p.segment[s].weight, p.gated ? p.segment[s].weight2 : p.segment[s].weight})
      weights = weights && has_bit(op.early, static_cast<size_t>(weight));
  for (auto i = static_cast<size_t>(p.prologue_operand); i < static_cast<size_t>(p.segment[0].first_operand); ++i) {
    prologue = prologue && (op.operands[i].slot == abi::kNoSlot || has_bit(op.early | op.flags.operands, i));
    words = words || has_bit(op.flags.operands, i);
  }
  return {weights, prologue && words};
}

/// A form is one piece of code: its ops have the same parameters, flag the same operands, and read as much before
/// their waits.
void check_forms(const Plan& plan) {
  std::map<int32_t, size_t> first;  // op of each form
  for (size_t index = 0; index < plan.ops.size(); ++index) {
    const plan::Op& op = plan.ops[index];
    const bool few = op.record.kind == abi::TaskKind::kMatmulRows;
    require(plan, few == (op.form >= 0), describe(plan, static_cast<int64_t>(index)), " has form ", op.form);
    if (!few) continue;
    const auto& other = plan.ops[first.try_emplace(op.form, index).first->second];
    abi::MatmulRowsParams a = op.record.params.rows, b = other.record.params.rows;
    const auto room = [](int m) { return m == 1 ? 1 : m <= 8 ? 8 : abi::kMostFewRows; };
    require(plan, room(a.m) == room(b.m), describe(plan, static_cast<int64_t>(index)), ", form ", op.form, ": ", a.m,
            " rows, another op of that form has ", b.m);
    a.m = b.m, a.form = b.form;
    std::copy(std::begin(b.map), std::end(b.map), a.map);
    const bool same = op.flags.operands == other.flags.operands && read_early(op) == read_early(other);
    require(plan, std::memcmp(&a, &b, sizeof a) == 0 && same, describe(plan, static_cast<int64_t>(index)), " and '",
            other.name, "' differ, but have form ", op.form);
  }
}

}  // namespace

void verify_flag_words(const Plan& plan, VerifyReport& report) {
  check_forms(plan);
  const bool none =
      plan.num_flag_words == 0 &&
      std::none_of(plan.buffers.begin(), plan.buffers.end(), [](const auto& b) { return b.first_word >= 0; }) &&
      std::none_of(plan.ops.begin(), plan.ops.end(), [](const plan::Op& op) { return op.flags.any(); });
  if (none) return;  // the plan runs as its records say
  check_words(plan);
  check_uses(plan);
  const Plan rest = rest_of(plan);
  verify_counters(rest);
  verify_memory(rest, report);
}

}  // namespace ark::planner
