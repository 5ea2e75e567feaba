// Rows of a product by rank: those of each become a batch of their own, all of which share the second operand.
#pragma once
#include "planner/draft.h"
#include "planner/options.h"

namespace ark::planner {

/// Whether a product of one batch and many tiles may be cut into batches of `rows` rows: each begins with a tile, and
/// the program's values do not depend on where a row is.
bool can_batch_rows(const FusedGraph& graph, const FusedOp& op, int64_t rows, const Options& options);

/// Cuts it into as many batches as there are ranks.
void batch_rows(const FusedGraph& graph, FusedOp& op, int64_t rows);

}  // namespace ark::planner
