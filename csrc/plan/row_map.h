// Waits and arrivals of a record as one thing: a map from the coordinates of a tile to rows on its counters.
#pragma once
#include "device/abi/abi.h"

namespace ark::plan {

/// The rows of a tile on the counters of a wait or an arrival (abi.h).
using RowMap = abi::Arrive;
inline RowMap row_map(const abi::Arrive& arrive) { return arrive; }
inline RowMap row_map(const abi::Wait& w) {
  return {w.counter, w.base, {w.coef[0], w.coef[1], w.coef[2]}, w.extent, w.div, w.limit};
}

}  // namespace ark::plan
