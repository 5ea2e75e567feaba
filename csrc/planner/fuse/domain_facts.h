// What is known of the domain that a program is built over.
#pragma once
#include <cstdint>
#include <set>
#include <vector>

namespace ark::planner {

/// A program over the builder's dimensions.
struct DomainFacts {
  const std::vector<int64_t>& sizes;
  uint32_t reduced = 0;                        // dimensions that are
  const std::set<int>& raw_operands;           // whose strides are numbers of their own (Opcode::kLoadParts)
  const std::vector<uint32_t>& index_depends;  // per operand: dimensions that its index and predicate depend on
};

}  // namespace ark::planner
