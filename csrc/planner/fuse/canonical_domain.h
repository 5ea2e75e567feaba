// The iteration domain of a pointwise, row or column program in its simplest form: no dimensions of size 1, neighbours
// that every operand walks as one are one, and the innermost dimension is the one that is contiguous in what is written
// and, after that, in most of what is read. Kept and reduced dimensions stay apart. Of a pointwise program that reads
// transposed operands, the last but one is the one that these are contiguous along, and long rows are cut in blocks.
//
// A coordinate that the program names (Opcode::kIndex) has a dimension of its own, unless all that is made of it is
// made of the merged one as well: sums like x[0] * size[1] + x[1], the place in a stream of random numbers.
#pragma once
#include <cstdint>
#include <vector>

#include "planner/fuse/domain_facts.h"
#include "planner/fuse/program_builder.h"

namespace ark::planner {

/// Rewrites the program, its domain and its operands' strides. The result: dimensions (of `facts`) that the innermost
/// one of the new domain is made of.
uint32_t make_canonical(const DomainFacts& facts, BuiltProgram& built);

/// Drops instructions whose results nobody uses.
void remove_dead(std::vector<Instr>& instrs);

}  // namespace ark::planner
