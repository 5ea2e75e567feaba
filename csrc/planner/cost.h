// What ops and tiles cost by the numbers of costs.h: the model behind schedule's choices and predicted_ms. Times in
// seconds.
#pragma once
#include <vector>

#include "planner/draft.h"
#include "planner/options.h"

namespace ark::planner {

/// Time that one tile of the op keeps its worker busy, all workers running. Excludes the costs per item.
double tile_seconds(const plan::Op& op, const std::vector<Program>& programs, const Machine& machine);
/// The same with what a tile stores to other ranks at the rate of one worker; what the link carries of all of them is
/// not in it.
double tile_seconds(const FusedGraph& graph, const FusedOp& op, const Machine& machine);

/// Bytes that the op stores to other ranks.
double sent_bytes(const FusedGraph& graph, const FusedOp& op);
/// The least time that the link takes for them.
double link_seconds(const FusedGraph& graph, const FusedOp& op, const Machine& machine);

/// An attention whose queries see keys up to about their own position: causal, or by a mask of booleans that differs
/// from query to query (what it holds is not known yet: were it anything else, only the balance of workers would
/// suffer).
bool sees_triangle(const plan::Op& op);

/// Work of a tile relative to the mean of its op, by the tile's last grid coordinate; empty: all are alike.
std::vector<double> tile_weights(const plan::Op& op);

/// The least time that the op can take on the whole machine: max(bytes / bandwidth, flops / rate).
double floor_seconds(const plan::Op& op, const Machine& machine);

}  // namespace ark::planner
