// Part of the planning after tile: programs that differ in numbers that they add, or draw random numbers by, become
// one, whose numbers stand in the records (Opcode::kParameter). The n-th dropout of a graph draws from the n-th offset
// of the generator: BERT-Large's forward had 92 programs for 24 equal layers, and the kernel's size and compile time
// went with them.
//
// No factors and divisors (but see `sizes_vary`), for the compiler makes much of a factor or a divisor that it knows;
// only for kinds whose program's operands are the record's last; at most kMaxDims numbers a program.
#pragma once
#include "planner/fused.h"

namespace ark::planner {

/// `sizes_vary`: so do numbers that are sizes (extents of indices, strides of streams), whether they differ or not.
void share_programs(FusedGraph& graph, bool sizes_vary = false);

}  // namespace ark::planner
