// Pass: addresses. Turns storages into buffers (slots), places intermediates in the arena by lifetime, and rewrites
// the slots of operands and tensor maps. Memory is shared only where everyone who touches the old tenant is proved to
// be finished before the first writer of the new one starts, or where a wait for them is added that costs nothing: they
// finished long ago by the schedule's clock.
#pragma once
#include "planner/draft.h"
#include "planner/options.h"
#include "planner/order/schedule.h"
#include "planner/order/synchronize.h"

namespace ark::planner {

/// Fills plan.buffers and plan.arena_bytes from the draft, and renames slots in the draft. May add waits and arrivals.
void place_memory(Draft& draft, const Options& options, const Timeline& timeline, Sync& sync, plan::Plan& plan);

inline constexpr int64_t kArenaAlignment = 256;

}  // namespace ark::planner
