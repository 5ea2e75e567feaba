// The verifier of flagged words: every poll, flagged store, word, wait and arrival that the loop kernel would run with
// is damaged in turn. What an enumeration of the plan calls a race, or what no launch would survive, must be refused.
#include "plan/flag_words.h"
#include "planner/planner.h"
#include "planner/verify/regions.h"
#include "planner/verify/verify_plan.h"
#include "support/check.h"
#include "support/model_graph.h"
#include "support/plan_brute.h"

using namespace ark;
using namespace ark::test;
using planner::FlagWords;

namespace {

std::string complaint(const plan::Plan& plan, const FlagWords& flags) {
  try {
    planner::VerifyReport report;
    verify_flag_words(plan, flags, report);
    return "";
  } catch (const InternalError& error) {
    return error.what();
  }
}

class Damages {
 public:
  explicit Damages(plan::Plan plan) : plan_(std::move(plan)), flags_(planner::flag_words(plan_)) {
    EXPECT(flags_.num_words > 0);
    EXPECT_EQ(complaint(plan_, flags_), "");
  }

  /// A poll dropped, a flagged store made plain, a plain access made one of words.
  void operands() {
    int caught = 0;
    for (size_t op = 0; op < plan_.ops.size(); ++op)
      for (size_t i = 0; i < plan_.ops[op].operands.size() && i < 32; ++i) {
        FlagWords damaged = flags_;
        damaged.ops[op].operands ^= 1u << i;
        refused(plan_, damaged, cat("op ", op, ": flag of operand ", i), caught);
      }
    std::printf("flags of operands: %d caught\n", caught);
    EXPECT(caught > 30);
  }

  /// Words of two buffers, of none, of other launches.
  void words() {
    int caught = 0;
    for (size_t b = 0; b < plan_.buffers.size(); ++b) {
      if (flags_.first_word[b] < 0) continue;
      for (size_t other = 0; other < plan_.buffers.size(); ++other) {
        if (other == b || flags_.first_word[other] < 0) continue;
        FlagWords damaged = flags_;
        damaged.first_word[b] = flags_.first_word[other];
        refused(plan_, damaged, cat("slot ", b, " with the words of slot ", other), caught);
      }
      for (const int64_t word : {flags_.first_word[b] + 2, flags_.num_words, int64_t{-1}}) {
        FlagWords damaged = flags_;
        damaged.first_word[b] = word;
        refused(plan_, damaged, cat("slot ", b, " with words from ", word), caught);
      }
    }
    std::printf("words: %d caught\n", caught);
    EXPECT(caught > 10);
  }

  /// A writer that leaves words of the launch before, and one that writes twice.
  void writers() {
    int caught = 0;
    for (size_t op = 0; op < plan_.ops.size(); ++op) {
      const auto uses = planner::read_uses(plan_.ops[op], plan_.programs);
      for (size_t i = 0; i < uses.size() && i < 32; ++i) {
        if (!uses[i].write || (flags_.ops[op].operands >> i & 1) == 0) continue;
        plan::Plan part = plan_, later = plan_;
        for (auto& stride : part.ops[op].operands[i].stride) stride = 0;
        refused(part, flags_, cat("op ", op, " writes one word of operand ", i), caught);
        later.ops[op].operands[i].offset += 8;
        refused(later, flags_, cat("op ", op, " writes from word 8 of operand ", i), caught);
        plan::Plan longer = plan_;
        longer.buffers[plan_.ops[op].operands[i].slot].size_bytes += 16;
        refused(longer, flags_, cat("op ", op, " leaves the last words of operand ", i), caught);
      }
    }
    std::printf("writers: %d caught\n", caught);
    EXPECT(caught > 3);
  }

  /// Waits that are left, against the enumeration; counts that do not come out.
  void waits() {
    const plan::Plan whole = rest_of(flags_);
    const auto conflicts = BrutePlan(whole).conflicts();  // of accesses, whatever the waits
    int races = 0, strict = 0, caught = 0;
    for (size_t op = 0; op < plan_.ops.size(); ++op)
      for (size_t w = 0; w < flags_.ops[op].waits.size(); ++w) {
        FlagWords damaged = flags_;
        damaged.ops[op].waits.erase(damaged.ops[op].waits.begin() + static_cast<std::ptrdiff_t>(w));
        const plan::Plan rest = rest_of(damaged);
        const bool race = !BrutePlan(rest).all_ordered(conflicts), no = !complaint(plan_, damaged).empty();
        races += race, strict += no && !race;
        if (race && !no) test::fail(cat("not caught: op ", op, " without wait ", w), __FILE__, __LINE__);
        for (const int by : {-1, 1}) {
          damaged = flags_;
          damaged.ops[op].waits[w].target += static_cast<uint32_t>(by);
          damaged.ops[op].waits[w].last_target += static_cast<uint32_t>(by);
          refused(plan_, damaged, cat("op ", op, ", target of wait ", w), caught);
        }
      }
    for (size_t op = 0; op < plan_.ops.size(); ++op)
      for (size_t a = 0; a < flags_.ops[op].arrivals.size(); ++a) {
        FlagWords damaged = flags_;
        damaged.ops[op].arrivals.erase(damaged.ops[op].arrivals.begin() + static_cast<std::ptrdiff_t>(a));
        refused(plan_, damaged, cat("op ", op, " without arrival ", a), caught);
      }
    std::printf("waits: %d races caught, %d refused though right; counts: %d caught\n", races, strict, caught);
    EXPECT(races > 3);
    EXPECT_EQ(strict, 0);
  }

 private:
  static void refused(const plan::Plan& plan, const FlagWords& flags, const std::string& damage, int& caught) {
    if (complaint(plan, flags).empty()) return test::fail("not caught: " + damage, __FILE__, __LINE__);
    ++caught;
  }
  /// What is left to waits, for the enumeration.
  plan::Plan rest_of(const FlagWords& flags) const {
    plan::Plan rest = plan_;
    for (size_t i = 0; i < rest.ops.size(); ++i) {
      plan::Op& op = rest.ops[i];
      for (size_t k = 0; k < op.operands.size() && k < 32; ++k)
        if ((flags.ops[i].operands >> k & 1) != 0) op.operands[k].slot = abi::kNoSlot;
      op.record.num_waits = static_cast<int>(flags.ops[i].waits.size());
      op.record.num_arrivals = static_cast<int>(flags.ops[i].arrivals.size());
      std::copy(flags.ops[i].waits.begin(), flags.ops[i].waits.end(), op.record.wait);
      std::copy(flags.ops[i].arrivals.begin(), flags.ops[i].arrivals.end(), op.record.arrive);
    }
    return rest;
  }

  const plan::Plan plan_;
  const FlagWords flags_;
};

}  // namespace

int main() {
  auto [m, x] = decode_step();
  m.graph.outputs = {x};
  Damages damages(planner::make_plan(m.graph, {}));
  damages.operands();
  damages.words();
  damages.writers();
  damages.waits();
  return test::result("verify_flags");
}
