// In which order the dimensions of a program are walked.
#pragma once
#include <vector>

#include "planner/fuse/domain_facts.h"
#include "planner/fuse/program_builder.h"

namespace ark::planner {

/// Whether operand `i` moves along the domain by its strides.
bool walks_domain(const DomainFacts& facts, const BuiltProgram& built, size_t i);

/// Sorts dimensions that may change places. `innermost`: the domain ends in them.
void order_dims(const DomainFacts& facts, const BuiltProgram& built, bool innermost, std::vector<int>& dims);

}  // namespace ark::planner
