// The verifier of flagged words: every poll, flagged store, word, wait and arrival that the loop kernel would run with
// is damaged in turn. What an enumeration of the plan calls a race, or what no launch would survive, must be refused.
#include <algorithm>

#include "plan/few_rows_form.h"
#include "planner/planner.h"
#include "planner/verify/regions.h"
#include "planner/verify/verify_plan.h"
#include "support/check.h"
#include "support/model_graph.h"
#include "support/plan_brute.h"

using namespace ark;
using namespace ark::test;

namespace {

std::string complaint(const plan::Plan& plan) {
  try {
    planner::VerifyReport report;
    verify_flag_words(plan, report);
    return "";
  } catch (const InternalError& error) {
    return error.what();
  }
}

std::string structure_complaint(const plan::Plan& plan) {
  try {
    planner::verify_plan(plan, planner::VerifyLevel::kStructure);
    return "";
  } catch (const InternalError& error) {
    return error.what();
  }
}

bool has_bit(uint32_t mask, size_t i) { return i < 32 && (mask >> i & 1) != 0; }

class Damages {
 public:
  explicit Damages(plan::Plan plan) : plan_(std::move(plan)) {
    EXPECT(plan_.num_flag_words > 0);
    EXPECT_EQ(complaint(plan_), "");
  }

  /// A poll dropped, a flagged store made plain, a plain access made one of words; each also where another op of the
  /// form is damaged alike.
  void operands() {
    int caught = 0;
    for (size_t op = 0; op < plan_.ops.size(); ++op)
      for (size_t i = 0; i < plan_.ops[op].operands.size() && i < 32; ++i) {
        plan::Plan damaged = plan_;
        damaged.ops[op].flags.operands ^= 1u << i;
        refused(damaged, cat("op ", op, ": flag of operand ", i), caught);
        plan::number_forms(damaged);
        refused(damaged, cat("op ", op, ": flag of operand ", i, ", in a form of its own"), caught);
      }
    std::printf("flags of operands: %d caught\n", caught);
    EXPECT(caught > 60);
  }

  /// Words for a buffer that has none, and one op that flags it: all others read or write it plainly.
  void plain_users() {
    int caught = 0;
    for (size_t op = 0; op < plan_.ops.size(); ++op)
      for (size_t i = 0; i < plan_.ops[op].operands.size() && i < 32; ++i) {
        const uint32_t slot = plan_.ops[op].operands[i].slot;
        if (slot == abi::kNoSlot || plan_.buffers[slot].first_word >= 0) continue;
        plan::Plan damaged = plan_;
        damaged.buffers[slot].first_word = plan_.num_flag_words;
        damaged.num_flag_words += (plan_.buffers[slot].size_bytes / 2 + 31) / 32 * 32;
        damaged.ops[op].flags.operands |= 1u << i;
        plan::number_forms(damaged);
        refused(damaged, cat("op ", op, " flags operand ", i, " alone"), caught);
      }
    std::printf("plain users: %d caught\n", caught);
    EXPECT(caught > 30);
  }

  /// Ops of other code, of none, and code of an op that has no forms.
  void forms() {
    int caught = 0;
    for (size_t op = 0; op < plan_.ops.size(); ++op)
      for (int32_t form = -1; form < 4; ++form) {
        if (form == plan_.ops[op].form) continue;
        plan::Plan damaged = plan_;
        damaged.ops[op].form = form;
        const bool alone = std::ranges::count(plan_.ops, plan_.ops[op].form, &plan::Op::form) == 1 &&
                           std::ranges::count(plan_.ops, form, &plan::Op::form) == 0;
        if (form < 0 || !alone) refused(damaged, cat("op ", op, " with form ", form), caught);
      }
    std::printf("forms: %d caught\n", caught);
    EXPECT(caught > 10);
  }

  /// Words of two buffers, of none, of other launches.
  void words() {
    int caught = 0;
    for (size_t b = 0; b < plan_.buffers.size(); ++b) {
      const int64_t first = plan_.buffers[b].first_word;
      if (first < 0) continue;
      for (size_t other = 0; other < plan_.buffers.size(); ++other) {
        if (other == b || plan_.buffers[other].first_word < 0) continue;
        plan::Plan damaged = plan_;
        damaged.buffers[b].first_word = plan_.buffers[other].first_word;
        refused(damaged, cat("slot ", b, " with the words of slot ", other), caught);
      }
      for (const int64_t word : {first + 2, plan_.num_flag_words, int64_t{-1}}) {
        plan::Plan damaged = plan_;
        damaged.buffers[b].first_word = word;
        refused(damaged, cat("slot ", b, " with words from ", word), caught);
      }
    }
    for (const int64_t words : {int64_t{0}, plan_.num_flag_words - 32, plan_.num_flag_words + 1}) {
      plan::Plan damaged = plan_;
      damaged.num_flag_words = words;
      refused(damaged, cat(words, " words"), caught);
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
        if (!uses[i].write || !has_bit(plan_.ops[op].flags.operands, i)) continue;
        plan::Plan part = plan_, later = plan_;
        for (auto& stride : part.ops[op].operands[i].stride) stride = 0;
        refused(part, cat("op ", op, " writes one word of operand ", i), caught);
        later.ops[op].operands[i].offset += 8;
        refused(later, cat("op ", op, " writes from word 8 of operand ", i), caught);
        plan::Plan longer = plan_;
        longer.buffers[plan_.ops[op].operands[i].slot].size_bytes += 16;
        refused(longer, cat("op ", op, " leaves the last words of operand ", i), caught);
      }
    }
    std::printf("writers: %d caught\n", caught);
    EXPECT(caught > 3);
  }

  /// Every wait that is left dropped, against the enumeration; counts that do not come out.
  void waits() {
    const plan::Plan whole = rest_of(plan_);
    const auto conflicts = BrutePlan(whole).conflicts();  // of accesses, whatever the waits
    int races = 0, strict = 0, caught = 0;
    const auto drop = [&](const plan::Plan& damaged, const std::string& damage) {
      const bool race = !BrutePlan(rest_of(damaged)).all_ordered(conflicts), no = !complaint(damaged).empty();
      races += race, strict += no && !race;
      if (race && !no) test::fail("not caught: " + damage, __FILE__, __LINE__);
    };
    for (size_t op = 0; op < plan_.ops.size(); ++op) {
      for (size_t w = 0; w < static_cast<size_t>(plan_.ops[op].record.num_waits); ++w) {
        if (has_bit(plan_.ops[op].flags.dropped_waits, w)) continue;
        plan::Plan damaged = plan_;
        damaged.ops[op].flags.dropped_waits |= 1u << w;
        drop(damaged, cat("op ", op, " without wait ", w));
        for (const int by : {-1, 1}) {
          damaged = plan_;
          change(damaged.ops[op].record.wait[w], by);
          refused(damaged, cat("op ", op, ", target of wait ", w), caught);
        }
      }
      for (size_t w = 0; w < plan_.ops[op].flags.added_waits.size(); ++w) {
        plan::Plan damaged = plan_;
        std::vector<abi::Wait>& added = damaged.ops[op].flags.added_waits;
        added.erase(added.begin() + static_cast<std::ptrdiff_t>(w));
        drop(damaged, cat("op ", op, " without added wait ", w));
        for (const int by : {-1, 1}) {
          damaged = plan_;
          change(damaged.ops[op].flags.added_waits[w], by);
          refused(damaged, cat("op ", op, ", target of added wait ", w), caught);
        }
        damaged = plan_;
        damaged.ops[op].flags.added_waits[w].counter = static_cast<uint32_t>(plan_.num_counters);
        EXPECT(structure_complaint(damaged).find("an added wait reaches counter") != std::string::npos);
      }
    }
    std::printf("waits: %d races caught, %d refused though right; counts: %d caught\n", races, strict, caught);
    EXPECT(races > 3);
    EXPECT_EQ(strict, 0);
  }

  /// Arrivals that somebody waits for dropped; flags of what is not there.
  void arrivals() {
    int caught = 0;
    for (size_t op = 0; op < plan_.ops.size(); ++op) {
      const abi::OpRecord& record = plan_.ops[op].record;
      for (int a = 0; a < record.num_arrivals; ++a) {
        if (has_bit(plan_.ops[op].flags.dropped_arrivals, static_cast<size_t>(a))) continue;
        plan::Plan damaged = plan_;
        damaged.ops[op].flags.dropped_arrivals |= 1u << a;
        refused(damaged, cat("op ", op, " without arrival ", a), caught);
      }
      plan::Plan damaged = plan_;
      damaged.ops[op].flags.dropped_arrivals |= 1u << record.num_arrivals;
      EXPECT(structure_complaint(damaged).find("that it lacks") != std::string::npos);
      damaged = plan_;
      damaged.ops[op].flags.dropped_waits |= 1u << record.num_waits;
      EXPECT(structure_complaint(damaged).find("that it lacks") != std::string::npos);
    }
    std::printf("arrivals: %d caught\n", caught);
    EXPECT(caught > 10);
  }

 private:
  static void change(abi::Wait& wait, int by) {
    wait.target += static_cast<uint32_t>(by);
    wait.last_target += static_cast<uint32_t>(by);
  }
  static void refused(const plan::Plan& plan, const std::string& damage, int& caught) {
    if (complaint(plan).empty()) return test::fail("not caught: " + damage, __FILE__, __LINE__);
    ++caught;
  }
  /// What is left to waits, for the enumeration.
  static plan::Plan rest_of(plan::Plan rest) {
    for (plan::Op& op : rest.ops) {
      for (size_t k = 0; k < op.operands.size(); ++k)
        if (has_bit(op.flags.operands, k)) op.operands[k].slot = abi::kNoSlot;
      abi::OpRecord& r = op.record;
      std::vector<abi::Wait> waits;
      for (int w = 0; w < r.num_waits; ++w)
        if (!has_bit(op.flags.dropped_waits, static_cast<size_t>(w))) waits.push_back(r.wait[w]);
      waits.insert(waits.end(), op.flags.added_waits.begin(), op.flags.added_waits.end());
      std::vector<abi::Arrive> arrivals;
      for (int a = 0; a < r.num_arrivals; ++a)
        if (!has_bit(op.flags.dropped_arrivals, static_cast<size_t>(a))) arrivals.push_back(r.arrive[a]);
      r.num_waits = static_cast<int>(waits.size());
      r.num_arrivals = static_cast<int>(arrivals.size());
      std::copy(waits.begin(), waits.end(), r.wait);
      std::copy(arrivals.begin(), arrivals.end(), r.arrive);
    }
    return rest;
  }

  const plan::Plan plan_;
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
  damages.arrivals();
  damages.forms();
  damages.plain_users();
  return test::result("verify_flags");
}
