// What `fuse` hands to the passes after it: the graph cut into ops of the plan. Every op already has its task kind, its
// programs, its operands (strides over the op's iteration domain) and its parameters in sizes; it has no tile grid, no
// waits, no worker and no addresses yet. Operand::slot holds a StorageId.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "plan/kinds.h"
#include "plan/plan.h"

namespace ark::planner {

using StorageId = int32_t;

/// Memory that holds one tensor: a graph input, a returned tensor, or an intermediate.
struct Storage {
  DType dtype = DType::kF32;
  int64_t num_elements = 0;  // of the whole allocation (inputs: offset + 1 + sum (size - 1) * stride)
  std::vector<int64_t> sizes, strides;
  int32_t input = -1;      // graph input, or -1
  bool immutable = false;  // a parameter or an input that no op of this graph writes
  bool returned = false;   // must be a fresh tensor of the caller's
  std::string name;
};

using plan::Access;

struct FusedOp {
  plan::Op op;  // record.kind, record.size, params, operands (slot = StorageId), programs, name, bytes, flops
  std::vector<Access> access;  // parallel to op.operands; kParameters: index strides of the operand that names it
  /// Anti-dependences that the data flow alone does not give: this op overwrites storages that these earlier ops read.
  std::vector<int32_t> after;
};

struct FusedGraph {
  std::vector<Storage> storages;
  std::vector<Program> programs;
  std::vector<FusedOp> ops;  // in a topological order
  std::vector<plan::FreshTensor> fresh;
  std::vector<StorageId> fresh_storage;  // parallel to `fresh`
  std::vector<plan::Output> outputs;
};

/// Contract: takes a verified, bound graph. Afterwards every node is computed by exactly one op or by the ops that read
/// it (pointwise nodes may be computed again), views and clones are gone, an IndexStore into an input that CopyTo
/// writes back happens in place, and every op obeys the limits of abi.h.
FusedGraph fuse(ir::Graph bound_graph, bool tensor_cores, int num_workers, bool few_rows = true);

std::string to_string(const FusedGraph& graph);

}  // namespace ark::planner
