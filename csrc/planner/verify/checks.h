// The parts of verify_plan; each throws InternalError on the first thing that is wrong.
#pragma once
#include <ostream>
#include <utility>

#include "base/check.h"
#include "plan/plan.h"
#include "planner/verify/report.h"

namespace ark::planner {

/// Lists, records, buffers, flags. Afterwards every index in the plan may be used without a look.
void verify_structure(const plan::Plan& plan);
/// Programs, grids, tensor maps. Within verify_structure, once slots and numbers are known to be in range.
void verify_records(const plan::Plan& plan);
/// Boxes of exchanges: within verify_structure, before anybody asks for a twin.
void verify_boxes(const plan::Plan& plan);
/// What is read before the waits; structure must be right.
void verify_early(const plan::Plan& plan);
/// Who sends what, and who waits for whom; structure must be right.
void verify_exchanges(const plan::Plan& plan);
/// Products that read the own rank's rows elsewhere, and waits for one rank; structure must be right.
void verify_own_rows(const plan::Plan& plan);
/// Targets, the order of waits, the end of the lists.
void verify_counters(const plan::Plan& plan);
/// Ops in the background do what their programs say; structure must be right.
void verify_background(const plan::Plan& plan);
/// Loops: what is carried, the stop flag, the border.
void verify_loop(const plan::Plan& plan);
/// Bounds and races; structure and counters must be right.
void verify_memory(const plan::Plan& plan, VerifyReport& report);

template <class... Args>
void require(const plan::Plan& plan, bool condition, const Args&... message) {
  if (!condition) [[unlikely]]
    throw InternalError(cat("plan ", plan.name, ": ", message...));
}
/// The slot that stands for the memory: a box's for its out-box, the first box's for all of an exchange, its own for
/// what goes to another rank or comes from it as a part.
inline uint32_t memory_slot(const plan::Plan& plan, uint32_t slot) {
  const plan::Buffer& b = plan.buffers[slot];
  return b.twin >= 0 && !plan::is_part(b.kind) ? static_cast<uint32_t>(b.twin) : slot;
}
/// Where the boxes of its exchange begin.
inline int64_t box_begin(const plan::Buffer& box) {
  if (box.kind == plan::BufferKind::kBoxes) return box.arena_offset;
  return box.arena_offset - plan::box_stride(box.size_bytes) * box.index;
}
/// Which exchange a box or an out-box is of: where its boxes begin, and the op that sends. Exchanges may have the same
/// boxes one after the other.
using ExchangeKey = std::pair<int64_t, int32_t>;
inline ExchangeKey exchange_of(const plan::Buffer& box) { return {box_begin(box), box.first_op}; }
/// Of a part: the op that sends when this rank has stored all of its parts, for which who reads a part waits.
inline int32_t sender_of_part(const plan::Plan& plan, const plan::Buffer& part) {
  return plan.buffers[static_cast<size_t>(part.twin)].first_op;
}
/// "op 3 'name'"; printed only when a message is needed.
struct OpName {
  const plan::Plan& plan;
  int64_t op;
};
inline OpName describe(const plan::Plan& plan, int64_t op) { return {plan, op}; }
inline std::ostream& operator<<(std::ostream& out, const OpName& name) {
  return out << "op " << name.op << " '" << name.plan.ops[static_cast<size_t>(name.op)].name << '\'';
}

}  // namespace ark::planner
