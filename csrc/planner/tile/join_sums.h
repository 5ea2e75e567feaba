// Part of tile: who adds the parts of a product whose k is split. A row op that is the first to read the product (the
// norm behind a projection) adds them itself, and stores the sum if somebody else reads it: one op less, and one hop.
#pragma once
#include <vector>

#include "planner/draft.h"

namespace ark::planner {

/// The row op that can add `parts` parts of product `product`; -1: none.
int joining_row(const FusedGraph& graph, size_t product, int parts);

/// Puts what `sum` computes, a pointwise op over (1, m, n) that stores one value, in the place of the row op's loads of
/// that value. `keep`: the row op stores it too. Programs that are new are appended.
void join_sum(const FusedOp& sum, bool keep, std::vector<Program>& programs, FusedOp& row);

/// Whether anybody but op `row` needs what product `product` stores.
bool is_kept(const FusedGraph& graph, size_t product, size_t row);

}  // namespace ark::planner
