// How many elements every operand of a finished program may move at once (abi::Operand::vector).
#pragma once
#include "planner/fuse/canonical_domain.h"

namespace ark::planner {

/// `innermost`: dimensions of `facts` that the domain's last one is made of.
void set_vectors(const DomainFacts& facts, uint32_t innermost, BuiltProgram& built);

}  // namespace ark::planner
