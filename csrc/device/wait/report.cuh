// Reporting: what the first wait that fails tells the host and the other ranks.
#pragma once
#include "device/abi/wait.h"
#include "device/ptx/ptx.cuh"

namespace ark::device {

/// Fills in a record and gives it to the host: who sees `set` sees the rest. `fill(record)` writes what was wrong.
template <class Record, class Fill>
ARK_DEVICE void publish(Record* record, i32 rank, u32 set, Fill fill) {
  record->rank = rank;
  record->worker = static_cast<i32>(blockIdx.x);
  fill(*record);
  store_release_system(&record->set, set);
}

/// Tells all other ranks that this one has given up, and about whom (abi::abort_about). `word(r)`: the abort word at
/// rank r, null where this rank does not reach it.
template <class Word>
ARK_DEVICE void tell_ranks(int world, int rank, u32 about, Word word) {
#pragma unroll 1
  for (int r = 0; r < world; ++r)
    if (r != rank)
      if (u32* at = word(r)) store_relaxed_system(at, about);
}

}  // namespace ark::device
