// Part of tile: products whose epilogue stores one value, which another op could compute in their place.
#pragma once
#include "planner/fuse/fused.h"

namespace ark::planner {

/// By coordinates alone.
bool is_plain_load(const Instr& in);
bool is_plain_store(const Instr& in);
bool touches_memory(const Instr& in);

/// The operand that an epilogue stores its only value to; -1: it does something that no other op could do in its place.
int stored_operand(const FusedOp& op, const Program& epilogue);

/// Whether the op reads or writes the storage.
bool uses(const FusedOp& op, uint32_t slot);

}  // namespace ark::planner
