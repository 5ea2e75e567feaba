// Part of tile: what stands beside an op. Tiles that would leave workers idle are made smaller than they cost least;
// where independent work of the same round fills the workers, they need not be.
#pragma once
#include <cstdint>
#include <vector>

#include "planner/draft.h"
#include "planner/options.h"

namespace ark::planner {

/// Per op, the time of all ops that are as far from the beginning of the graph as it is and as far from its end, by its
/// own: 1 where it is alone. By ops on the longest way; so what can wait (a gradient of a weight) does not count beside
/// what is waited for.
std::vector<double> beside_ops(const FusedGraph& graph, const Options& options);

/// The same of ops of one kind alone, by which tiles may be larger; 1 for ops whose results others read, whose tiles
/// are wanted early.
std::vector<double> alike_beside(const FusedGraph& graph, const Options& options);

/// Of these, ops that read nothing that the graph computes: no tile begins later for being larger; 1 for others.
std::vector<double> free_beside(const FusedGraph& graph, const Options& options);

/// Turns that the workers take for `tiles` tiles of an op beside which so much stands.
int64_t turns_of(int64_t tiles, double beside, int64_t workers);

}  // namespace ark::planner
