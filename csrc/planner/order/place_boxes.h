// Places of the boxes of exchanges. A later exchange takes the boxes of an earlier one when all ranks are done with
// these: some exchange in between is sent by every rank after the ops that touch them, and whoever sends the later one
// has seen it come from all ranks. Where that lacks a wait for an op that was over long before, it is added. Comes
// before the arena, so that places depend on the order of ops and what they wait for alone: all ranks need the same
// ones.
#pragma once
#include <cstdint>
#include <vector>

#include "planner/draft.h"
#include "planner/options.h"
#include "planner/order/synchronize.h"

namespace ark::planner {

struct BoxPlaces {
  std::vector<int64_t> begin;  // per storage: of the boxes of its exchange, among those of its group; -1: it is no box
  std::vector<int64_t> size = {0};  // per group: of all boxes
};

/// May add waits and arrivals. Slots of operands must still be storages.
BoxPlaces place_boxes(Draft& draft, const Options& options, Sync& sync);

}  // namespace ark::planner
