// Part of tile: tiles of consecutive elements, or rows, of a domain. None straddles a dimension that some operand does
// not walk as one with the next, so that what a tile touches is a box of every tensor.
#pragma once
#include <cstdint>
#include <vector>

#include "planner/fuse/fused.h"

namespace ark::planner {

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Joint {
  int64_t size;
  int first_dim;  // outermost domain dimension in it
};

/// Domain dimensions [begin, end) with neighbours merged where every operand walks them as one.
std::vector<Joint> joint_dims(const FusedOp& op, int begin, int end);

/// Largest tile at most `target` (and at least target / 4 if possible) that does not straddle the joint dimensions.
/// `multiple` 1: of rows; else of elements, which go by vectors.
int64_t aligned_tile(const std::vector<Joint>& joint, int64_t target, int64_t multiple);

/// The workers that a pointwise op of the graph has for itself: all, or, where its neighbours write other slices of
/// what it writes (pieces of a concatenation), its share of them, so that together they are one round of tiles.
int64_t workers_for(const FusedGraph& graph, const FusedOp& op, int64_t workers);

/// Elements of a pointwise tile; twice as many at most where every worker has one.
inline constexpr int64_t kLeastFlatElements = 2048, kMostFlatElements = 32768;
/// Of a pointwise op with several joint dimensions: `tile`, or one that costs the worker with most of them less, by a
/// twentieth and more.
int64_t cheapest_tile(const std::vector<Joint>& joint, int64_t tile, int64_t workers);

/// Elements of a tile of an op that stands beside others like it, waits for nobody and is awaited by nobody.
inline constexpr int64_t kMostFreeElements = 1 << 18;
/// For such an op `tile`, or a larger one by which the workers have all of these done sooner, by a twentieth and more.
/// `beside`: free_beside's.
int64_t free_tile(const std::vector<Joint>& joint, int64_t tile, double beside, int64_t workers);

}  // namespace ark::planner
