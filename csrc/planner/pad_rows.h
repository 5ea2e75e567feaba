// Part of tile: intermediates that a tensor-core matmul reads get rows that tensor maps can address. TMA wants strides
// of a multiple of 16 bytes; a vocabulary of 30522 bf16 gives 61044. Rows are lengthened where every op that touches
// the storage walks it by rows.
#pragma once
#include "planner/draft.h"

namespace ark::planner {

/// Changes storages' sizes and the strides and offsets of their operands. `tile` then finds out which matmuls have
/// become addressable.
void pad_rows(Draft& draft);

}  // namespace ark::planner
