// What `fuse` hands to the passes after it: the graph cut into ops of the plan. Every op already has its task kind, its
// programs, its operands (strides over the op's iteration domain) and its parameters in sizes; it has no tile grid, no
// waits, no worker and no addresses yet. Operand::slot holds a StorageId.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "plan/kinds.h"
#include "plan/plan.h"
#include "planner/options.h"

namespace ark::planner {

using StorageId = int32_t;

inline constexpr int32_t kAllRanks = -1;

/// Memory that holds one tensor: a graph input, a returned tensor, or an intermediate.
struct Storage {
  DType dtype = DType::kF32;
  int64_t num_elements = 0;  // of the whole allocation (inputs: offset + 1 + sum (size - 1) * stride)
  std::vector<int64_t> sizes, strides;
  int32_t input = -1;      // graph input, or -1
  bool immutable = false;  // a parameter or an input that no op of this graph writes
  bool returned = false;   // must be a fresh tensor of the caller's
  int32_t exchange = -1;   // this is a box of that exchange (a number of its own), or -1,
  int32_t source = -1;     // of what rank `source` sends; kAllRanks: all its boxes, side by side in the ranks' order
  int32_t group = 0;       // of the exchange
  int32_t part = -1;       // this is a part that is sent to rank `source`, or comes from it, in that uneven exchange
  std::string name;

  bool joined_boxes() const { return exchange >= 0 && source == kAllRanks; }
};

using plan::Access;

struct FusedOp {
  plan::Op op;  // record.kind, record.size, params, operands (slot = StorageId), programs, name, bytes, flops
  std::vector<Access> access;  // parallel to op.operands; kParameters: index strides of the operand that names it
  /// Anti-dependences that the data flow alone does not give: this op overwrites storages that these earlier ops read.
  std::vector<int32_t> after;
  /// A row op whose few rows are much work each, so that every worker takes one: parts of longer rows, rows that sum
  /// the parts of a product (planner/tile/join_sums.h), and long ones beside products of few rows (spread_rows.h).
  bool spread_rows = false;
  /// Of parts of columns: what stands beside the whole (planner/tile/beside.h), by which it was cut; 0: of other ops.
  double beside = 0;
};

struct FusedGraph {
  std::vector<Storage> storages;
  std::vector<Program> programs;
  std::vector<FusedOp> ops;  // in a topological order
  std::vector<plan::FreshTensor> fresh;
  std::vector<StorageId> fresh_storage;  // parallel to `fresh`
  std::vector<plan::Output> outputs;
  std::string group;                         // of the exchanges
  std::string splits;                        // as in plan::Plan
  int32_t world = 1;                         // its ranks; 1: no exchanges
  std::vector<plan::RankGroup> more_groups;  // names and ranks, as in plan::Plan
  ir::Loop loop;
};

/// Ranks then have values of other sizes, so that nothing that they have to do alike may follow from these: exchanges
/// are ops of their own, over a box, which arrive on one counter whoever reads; boxes are not taken over.
inline bool has_uneven(const FusedGraph& graph) { return graph.splits.find('u') != std::string::npos; }

/// Ways to send that know of one group are not taken then.
inline bool has_several_groups(const FusedGraph& graph) { return !graph.more_groups.empty(); }
inline int32_t num_groups(const FusedGraph& graph) {
  return graph.world == 1 ? 0 : 1 + static_cast<int32_t>(graph.more_groups.size());
}
inline int32_t world_of(const FusedGraph& graph, int32_t group) {
  return group == 0 ? graph.world : graph.more_groups.at(group - size_t{1}).world;
}

/// -1: none.
int32_t number_of_group(const FusedGraph& graph, const std::string& name);
/// The group to whose ranks the op sends something, or -1.
int32_t group_sent_to(const FusedGraph& graph, const FusedOp& op);

/// Does the op send something to other ranks?
inline bool is_exchange(const FusedGraph& graph, const FusedOp& op) { return group_sent_to(graph, op) >= 0; }

/// A product that sends each batch to another rank (tile/send_by_batch.h).
inline bool sends_by_batch(const FusedGraph& graph, const FusedOp& op) {
  return plan::kind_of(op.op.record).order == plan::Order::kGroupsOfM &&
         op.op.record.params.matmul.batch == graph.world && !has_several_groups(graph) && is_exchange(graph, op);
}

/// Of a program among these, to which it is added where no equal one is there.
inline int number_of(std::vector<Program>& programs, Program program) {
  const auto known = std::ranges::find(programs, program);
  const auto number = static_cast<int>(known - programs.begin());
  if (known == programs.end()) programs.push_back(std::move(program));
  return number;
}

/// Contract: takes a verified, bound graph. Afterwards every node is computed by exactly one op or by the ops that read
/// it (pointwise nodes may be computed again), views and clones are gone, an IndexStore into an input that CopyTo
/// writes back happens in place, and every op obeys the limits of abi.h.
FusedGraph fuse(ir::Graph bound_graph, const Options& options = {});

std::string to_string(const FusedGraph& graph);

}  // namespace ark::planner
