// Part of the planning after tile: programs that differ in numbers that they add, or draw random numbers by, become
// one, whose numbers stand in the records (Opcode::kParameter). The n-th dropout of a graph draws from the n-th offset
// of the generator: BERT-Large's forward had 92 programs for 24 equal layers, and the kernel's size and compile time
// went with them.
//
// No factors and divisors (but see `sizes_vary`), for the compiler makes much of a factor or a divisor that it knows.
// The numbers stand in an operand of their own behind all others (at most kMaxDims; kinds with one program), or, where
// sizes vary, behind the index strides of an operand that the program has anyway (at most two; records of few-row
// products are full). With the sizes in the code a decode step whose cache's length varies had 31 forms of few-row
// products for 7, and compiled for 100 s.
#pragma once
#include "planner/fuse/fused.h"

namespace ark::planner {

/// `sizes_vary`: so do numbers that are sizes (extents of indices, strides of caches and streams), whether they differ
/// or not.
void share_programs(FusedGraph& graph, bool sizes_vary = false);

}  // namespace ark::planner
