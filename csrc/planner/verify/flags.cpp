// What the loop kernel runs of a plan with flagged words (flag_words.h), proved from its meaning alone: every word has
// one writer, which writes it in every launch; everybody who touches such a buffer polls (or flags) its words, after
// the writer; the waits that are left come out and order everything else.
#include <algorithm>

#include "base/types.h"
#include "plan/flag_words.h"
#include "planner/verify/checks.h"
#include "planner/verify/uses.h"

namespace ark::planner {
namespace {

using plan::Plan;

bool is_flagged(const FlagWords& flags, size_t op, size_t operand) {
  return operand < 32 && (flags.ops[op].operands >> operand & 1) != 0;
}

/// Words lie inside of their area, at multiples of 16 bytes, and belong to one buffer each: a word of two buffers would
/// carry this launch's number before its reader's element is there.
void check_words(const Plan& plan, const FlagWords& flags) {
  require(plan, flags.ops.size() == plan.ops.size() && flags.first_word.size() == plan.buffers.size(),
          "flagged words of another plan");
  struct Range {
    int64_t begin, end;
    size_t slot;
  };
  std::vector<Range> ranges;
  for (size_t slot = 0; slot < plan.buffers.size(); ++slot) {
    const int64_t begin = flags.first_word[slot];
    if (begin < 0) continue;
    const int64_t end = begin + plan.buffers[slot].size_bytes / 2;
    require(plan, begin % 4 == 0 && end <= flags.num_words, "slot ", slot, " has flagged words ", begin, " to ", end,
            " of ", flags.num_words);
    require(plan, plan.buffers[slot].kind == plan::BufferKind::kArena, "slot ", slot,
            " is flagged, but others see it too");
    ranges.push_back({begin, end, slot});
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < ranges.size(); ++i)
    require(plan, ranges[i - 1].end <= ranges[i].begin, "slots ", ranges[i - 1].slot, " and ", ranges[i].slot,
            " share flagged words");
  require(plan, flags.num_words % abi::kCounterStride == 0, flags.num_words, " flagged words");
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
void check_uses(const Plan& plan, const FlagWords& flags) {
  std::vector<int> writer(plan.buffers.size(), -1);
  for (size_t index = 0; index < plan.ops.size(); ++index) {
    const auto name = [&] { return describe(plan, static_cast<int64_t>(index)); };
    const std::vector<OperandUse> uses = read_uses(plan.ops[index], plan.programs);
    for (size_t i = 0; i < uses.size(); ++i) {
      const uint32_t slot = plan.ops[index].operands[i].slot;
      const bool words = slot != abi::kNoSlot && flags.first_word[slot] >= 0;
      if (uses[i].used())
        check_operand(plan, index, i, is_flagged(flags, index, i), words);
      else
        require(plan, !is_flagged(flags, index, i), name(), ", operand ", i, " is flagged and not used");
    }
    for (const Use& use : uses_of(plan, index, uses)) {
      if (flags.first_word[use.slot] < 0) continue;
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
Plan rest_of(const Plan& plan, const FlagWords& flags) {
  Plan rest = plan;
  for (size_t index = 0; index < rest.ops.size(); ++index) {
    plan::Op& op = rest.ops[index];
    const FlagWords::Op& left = flags.ops[index];
    require(plan, left.waits.size() <= abi::kMaxWaits && left.arrivals.size() <= abi::kMaxArrivals,
            describe(plan, static_cast<int64_t>(index)), ": ", left.waits.size(), " waits and ", left.arrivals.size(),
            " arrivals are left");
    for (size_t i = 0; i < op.operands.size(); ++i)
      if (is_flagged(flags, index, i)) op.operands[i].slot = abi::kNoSlot;
    op.record.num_waits = static_cast<int32_t>(left.waits.size());
    op.record.num_arrivals = static_cast<int32_t>(left.arrivals.size());
    std::copy(left.waits.begin(), left.waits.end(), op.record.wait);
    const abi::OpRecord& whole = plan.ops[index].record;
    for (size_t a = 0; a < left.arrivals.size(); ++a) {
      op.record.arrive[a] = left.arrivals[a];
      for (int old = 0; old < whole.num_arrivals; ++old)
        if (whole.arrive[old].counter == left.arrivals[a].counter)
          op.record.arrive_rank_stride[a] = whole.arrive_rank_stride[old];
    }
  }
  return rest;
}

}  // namespace

void verify_flag_words(const Plan& plan, const FlagWords& flags, VerifyReport& report) {
  if (flags.ops.empty() && flags.num_words == 0) return;  // nothing is flagged: the plan runs as it is
  check_words(plan, flags);
  check_uses(plan, flags);
  const Plan rest = rest_of(plan, flags);
  verify_counters(rest);
  verify_memory(rest, report);
}

}  // namespace ark::planner
