// Reporting: what the first wait that fails tells the host and the other ranks.
#pragma once
#include "device/abi/wait.h"
#include "device/ptx/ptx.cuh"

namespace ark::device {

/// Fills in a record and gives it to the host: who sees `set` sees the rest. `fill(record)` writes what was wrong.
template <class Record, class Fill>
ARK_DEVICE void publish(Record* record, u32 set, Fill fill) {
  record->worker = static_cast<i32>(blockIdx.x);
  fill(*record);
  store_release_system(&record->set, set);
}

}  // namespace ark::device
