// Damages of plans with exchanges, for the proof of ranks and launches together (planner/verify/ranks.h). Two
// enumerations say what is a race: one of the merged plan (plan_brute.h), and one of the plan itself by the meaning of
// its records (brute_ranks.h), which shares nothing with the merging.
#pragma once
#include "planner/verify/ranks.h"
#include "support/brute_ranks.h"
#include "support/check.h"

namespace ark::test {

/// What the proof says of ranks together, without that of one rank.
inline std::string refusal(const plan::Plan& plan, const planner::RankRules& rules = {}) {
  try {
    planner::VerifyReport report;
    verify_ranks(plan, report, rules);
    return "";
  } catch (const InternalError& error) {
    return error.what();
  }
}

struct DamageCount {
  int races = 0, refused = 0, redundant = 0;
};

class RankDamages {
 public:
  using Change = std::function<void(plan::Plan&)>;

  explicit RankDamages(const plan::Plan& plan) : plan_(plan), conflicts_(BruteRanks(plan).conflicts()) {}

  const DamageCount& count() const { return count_; }

  /// The plan as it is: nobody finds a race.
  void check_whole() const {
    EXPECT_EQ(refusal(plan_), std::string());
    EXPECT(BruteRanks(plan_).all_ordered(conflicts_));
    EXPECT(!conflicts_.empty());
    EXPECT(merged_race(plan_, {}) == false);
  }

  /// A race must be refused.
  void damage(const std::string& what, const Change& change) {
    plan::Plan damaged = plan_;
    change(damaged);
    judge(what, refusal(damaged), !BruteRanks(damaged).all_ordered(conflicts_));
  }
  /// Refused are races alone, and both enumerations find them.
  void damage_exactly(const std::string& what, const Change& change) {
    plan::Plan damaged = plan_;
    change(damaged);
    agree(what, refusal(damaged), !BruteRanks(damaged).all_ordered(conflicts_), merged_race(damaged, {}));
  }
  /// The same of other rules; true where they make a race.
  bool damage_rules(const std::string& what, const planner::RankRules& rules) {
    BruteRanks brute(plan_, rules.launches);
    const bool race = !brute.all_ordered(brute.conflicts(rules.box_sets), rules.in_order);
    agree(what, refusal(plan_, rules), race, merged_race(plan_, rules));
    return race;
  }

  void remove_wait(size_t op, int w) {
    damage_exactly(cat("op ", op, " without wait ", w), [&](plan::Plan& p) {
      abi::OpRecord& r = p.ops[op].record;
      std::copy(r.wait + w + 1, r.wait + r.num_waits, r.wait + w);
      --r.num_waits;
    });
  }
  /// A wait for all ranks becomes one for a single rank.
  void await_one(size_t op, int w, int rank) {
    damage_exactly(cat("op ", op, ", wait ", w, " for rank ", rank, " alone"), [&](plan::Plan& p) {
      abi::Wait& wait = p.ops[op].record.wait[w];
      wait.counter += static_cast<uint32_t>(rank * wait.rank_stride);
      wait.rank_stride = 0;
    });
  }

 private:
  /// Nothing where the ranks cannot be merged.
  static std::optional<bool> merged_race(const plan::Plan& plan, const planner::RankRules& rules) {
    try {
      const plan::Plan merged = planner::merge_ranks(plan, rules);
      const BrutePlan brute(merged);
      return !brute.all_ordered(brute.conflicts());
    } catch (const InternalError&) {
      return std::nullopt;
    }
  }

  void fail(const std::string& what, const std::string& why, const std::string& message) const {
    test::fail(cat(plan_.name, ", ", plan_.world, " ranks, ", what, ": ", why, ", got \"", message, '"'), __FILE__,
               __LINE__);
  }

  void judge(const std::string& what, const std::string& message, bool race) {
    const bool refused = !message.empty();
    count_.races += race, count_.refused += refused, count_.redundant += !race && !refused;
    if (race && !refused) fail(what, "a race that is not refused", message);
    if (message.find(": race: ") == std::string::npos) return;
    const size_t middle = message.find("; ");  // both of them are named
    for (const char* part : {"rank ", ", launch ", ", op ", ", tile ", " bytes ", " of slot "})
      if (message.find(part) > middle || message.find(part, middle) == std::string::npos)
        fail(what, cat("expected two times \"", part, '"'), message);
  }
  void agree(const std::string& what, const std::string& message, bool race, std::optional<bool> merged) {
    judge(what, message, race);
    if (!message.empty() && !race) fail(what, "refused without a race", message);
    if (merged != race) fail(what, cat("a race is ", race, ", of the merged plan ", merged.value_or(false)), message);
  }

  const plan::Plan& plan_;
  const BruteRanks::Pairs conflicts_;
  DamageCount count_;
};

}  // namespace ark::test
