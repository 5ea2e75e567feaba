// Which ops must not start before which others, and through which operands: true dependences (read after write), and
// the anti-dependences (write after read, write after write) of storages that are written more than once.
#pragma once
#include <vector>

#include "planner/fuse/fused.h"

namespace ark::planner {

enum class Hazard : uint8_t {
  kReadAfterWrite,
  kWriteAfterRead,
  kWriteAfterWrite,
  kAfter /* FusedOp::after, no operands */
};

/// `op` must wait for `before`; they touch `storage` through these operands.
struct Dependence {
  int before = -1, op = -1;
  Hazard hazard = Hazard::kReadAfterWrite;
  StorageId storage = -1;
  int before_operand = -1, operand = -1;
};

/// Per op, in the graph's order, which must be a sequential order (every value is written before it is read). Grids
/// must be set.
std::vector<std::vector<Dependence>> dependences(const FusedGraph& graph);

/// Per op, whether others read what it writes.
std::vector<bool> read_ops(const FusedGraph& graph);

/// Per op, whether the step waits for it: others read what it writes, or there is little else to do meanwhile. Weight
/// gradients are not awaited.
std::vector<bool> awaited_ops(const FusedGraph& graph);

}  // namespace ark::planner
