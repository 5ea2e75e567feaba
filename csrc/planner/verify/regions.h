// Which bytes of a buffer a tile touches through one operand: exact, as boxes of strided runs. This is the meaning of a
// tile number for every task kind, written down once for the verifier (planner/verify/kinds); the planner derives waits
// from its own footprints (planner/footprint.h), so that a mistake in either shows.
#pragma once
#include <cstdint>
#include <vector>

#include "plan/operand_uses.h"
#include "plan/plan.h"
#include "planner/verify/box.h"
#include "planner/verify/tile_block.h"

namespace ark::planner {

using plan::OperandUse;

/// What an op does with its operands, by the verifier's own reading of its kind. Parallel to op.operands; entries that
/// hold parameters, and absent ones, are not used.
std::vector<OperandUse> read_uses(const plan::Op& op, const std::vector<Program>& programs);

/// Appends the boxes that tile `tile` touches through operand `operand`, relative to the slot's address. What is chosen
/// by values is all of the buffer; what a predicate guards is clipped to it.
void tile_region(const plan::Op& op, const std::vector<Program>& programs, int operand, const OperandUse& use,
                 int64_t tile, int64_t buffer_bytes, std::vector<Box>& boxes);

/// The same for all tiles of a block; between its tiles' boxes it may hold bytes that none of them touches.
void block_region(const plan::Op& op, const std::vector<Program>& programs, int operand, const OperandUse& use,
                  const TileBlock& block, int64_t buffer_bytes, std::vector<Box>& boxes);

}  // namespace ark::planner
