// What an op does with each of its operands.
#pragma once
#include <vector>

#include "plan/plan.h"

namespace ark::plan {

struct OperandUse {
  bool read = false, write = false;
  bool anywhere = false;    // elements chosen by values: an indexed operand, the parts of an attention
  bool predicated = false;  // some accesses do not happen: addresses may lie outside of the buffer
  int64_t batch = -1;       // only tiles with this first coordinate store it (predicated on it); -1: not so
  bool once = false;        // stored once per row (row task) or per kept element (column task), not per element
  bool used() const { return read || write; }
};

/// The first coordinate of an epilogue for which the store is done and for no other; -1: it does not ask for it.
int64_t stored_batch(const Program& program, const Instr& store);

/// Marks what program `number` (none: -1) does with the operands from `first` on, `uses` parallel to op.operands.
void program_uses(const Op& op, const std::vector<Program>& programs, int number, int first,
                  std::vector<OperandUse>& uses);

/// Parallel to op.operands, by the table of kinds (plan/kinds.h) and the programs. Entries that hold parameters, and
/// absent ones, are not used. The verifier has a function of its own (planner/verify/regions.h).
std::vector<OperandUse> operand_uses(const Op& op, const std::vector<Program>& programs);

}  // namespace ark::plan
