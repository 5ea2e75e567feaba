// Exchanges, proved with all ranks in view: W ranks times a few launches of a plan as one plan, in which every wait,
// box and counter belongs to somebody. verify_counters and verify_memory then prove it like any other; nothing of it
// relies on what verify_exchanges says of one rank.
#pragma once
#include "plan/plan.h"
#include "planner/verify/rank_rules.h"
#include "planner/verify/report.h"

namespace ark::planner {

/// Of several groups one: what is sent in others stays in this rank's arena, as if all their ranks were this one (as
/// plan::Plan says, its own op stands for theirs). Only ranks of the group touch its boxes, and they rely on no waits
/// for others'.
plan::Plan plan_of_group(const plan::Plan& plan, int32_t group);
/// Of a plan with one group. Op by op, launch after launch. Each op stands for itself on one rank in one launch, with
/// memory and counters of these; a wait for all ranks is one for an empty op (a join) that waits for the counters of
/// each.
plan::Plan merge_ranks(const plan::Plan& plan, const RankRules& rules = {});
/// Of a plan whose structure is right: no race and no wrong count between any two tiles of any ranks and launches.
/// Nothing for a plan of one rank. Part of kFull, of kRaces where it takes little.
void verify_ranks(const plan::Plan& plan, VerifyReport& report, const RankRules& rules = {});

}  // namespace ark::planner
