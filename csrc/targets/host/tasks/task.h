// What a tile does: one class per family of task kinds, made from an op record when the plan is loaded.
#pragma once
#include <memory>

#include "plan/kinds.h"
#include "plan/plan.h"
#include "targets/host/program/interpreter.h"

namespace ark::targets::host {

/// What a thread hands to the tiles that it runs.
struct TileEnvironment : Environment {
  uint64_t launch = 0;  // differs between the launches that share a Scratch
  int rank = 0;         // own, of a plan with exchanges
};

class Task {
 public:
  virtual ~Task() = default;
  /// Runs tiles [first, first + count), whose waits are over. The bits written do not depend on how tiles are grouped
  /// into calls. False when an index was out of range.
  virtual bool run(const TileEnvironment& env, int64_t first, int64_t count) const = 0;
  /// Rough cost of the whole op in nanoseconds on one core: decides how many threads a launch is worth.
  virtual double cost_ns() const = 0;
};

/// Throws InternalError for a malformed record and NodeUnsupported (with the op's node) for what the host cannot run.
std::unique_ptr<Task> make_task(const plan::Plan& plan, const plan::Op& op, const Kernels& kernels);

// make_<family>_task, by the names of the table (plan/kinds.h); each takes ops of its kinds only.
#define ARK_FAMILY(family, member, Params) \
  std::unique_ptr<Task> make_##member##_task(const plan::Plan& plan, const plan::Op& op, const Kernels& kernels);
ARK_FAMILIES(ARK_FAMILY)
#undef ARK_FAMILY

/// Programs named by a record, with the operands from `first_operand` on, over `size` (right-aligned to the program's
/// rank).
BoundProgram bind_task_program(const plan::Plan& plan, const plan::Op& op, const Kernels& kernels, int program,
                               int first_operand, std::span<const int64_t> size);

struct TileCoordinates {
  int64_t c[3];
};
inline TileCoordinates tile_coordinates(const abi::OpRecord& record, int64_t tile) {
  const int64_t c2 = tile % record.grid[abi::GridAxis::kInner], rest = tile / record.grid[abi::GridAxis::kInner];
  return {{rest / record.grid[abi::GridAxis::kMiddle], rest % record.grid[abi::GridAxis::kMiddle], c2}};
}
using plan::num_tiles;

}  // namespace ark::targets::host
