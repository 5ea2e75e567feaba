// Pass 5: addresses. Turns storages into buffers (slots), places intermediates in the arena by lifetime, and rewrites
// the slots of operands and tensor maps. Memory is shared only where every reader of the old tenant is proved to be
// finished before the first writer of the new one starts.
#pragma once
#include "planner/draft.h"
#include "planner/planner.h"

namespace ark::planner {

/// Fills plan.buffers, plan.arena_bytes and plan.fresh from the draft, and renames slots in the draft.
void place_memory(Draft& draft, const Options& options, plan::Plan& plan);

inline constexpr int64_t kArenaAlignment = 256;

}  // namespace ark::planner
