// Whose tiles a counter counts, and which counters a wait of a plan with exchanges is for (abi::Wait).
#pragma once
#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace ark::planner {

inline constexpr int32_t kOwnRank = -1;

/// On every rank a counter counts tiles of that rank, or tiles of rank `rank` wherever it stands.
struct CounterSource {
  int32_t op = -1;  // none: nobody arrives
  int32_t rank = kOwnRank;
};
/// Per counter. Throws where tiles of several ranks fall on one: a rank that is ahead could stand in for another.
std::vector<CounterSource> counter_sources(const plan::Plan& plan);

/// Counters first, first + 1, .. of one source.
struct CounterBlock {
  int32_t source, first, count;
};
/// What a wait of an op is for: a block, or one of each rank that it names. Throws where a block is not of one source,
/// or a wait for all ranks is for counters of the own one.
std::vector<CounterBlock> awaited_counters(const plan::Plan& plan, const std::vector<CounterSource>& sources, size_t op,
                                           int wait);

}  // namespace ark::planner
