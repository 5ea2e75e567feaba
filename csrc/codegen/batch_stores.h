// Products that send store the rows of each rank in its box (planner/tile/send_by_batch.h): their epilogues store one
// value for every rank, predicated on the batch. A tile has one batch, so code needs one store, through the operand of
// the tile's batch.
#pragma once
#include "ir/program.h"

namespace ark::codegen {

/// The operands that one value is stored in, each by one batch and no other. Batches from `count` on store it nowhere.
struct BatchStores {
  int count = 0;   // 0: no stores are joined
  int first = -1;  // operand of batch 0
  int rest = -1;   // operand of batch 1; that of batch b is rest + b - 1
  int operand(int batch) const { return batch == 0 ? first : rest + batch - 1; }
};

/// Joins the first such stores of an epilogue, of batches 0, 1, .. (two or more): that of batch 0 loses its predicate
/// and stands for all, the others become numbers that nothing reads. Stores whose operands the program names elsewhere
/// stay as they are.
BatchStores join_batch_stores(Program& program);

}  // namespace ark::codegen
