// How the threads of a worker share columns whose rows begin anywhere between aligned addresses
// (device/program/column_slots.cuh), shared with the test that looks whether every element is met once:
// tests/codegen/test_column_slots.cpp.
#pragma once
#include "device/abi/abi.h"

namespace ark::abi {

struct ColumnSlots {
  int columns;        // of a round; of the last one, what is left
  int lanes, groups;  // slots of a round's row; threads that have the same slot: a multiple of the period
};

/// `columns`: at least one, in `runs` rows that follow each other (1 or 2), whose slots are apart. `period`: rows after
/// which alignment is the same again; it divides `length`, a vector's elements, and both are powers of two. Rounds of
/// nearly equal size.
ARK_ABI_BOTH constexpr ColumnSlots column_slots(int columns, int runs, int length, int period, int threads) {
  // a run's slots begin up to length - 1 columns before it
  const int most = (threads / period - (runs == 1 ? 1 : 3)) * length, rounds = (columns + most - 1) / most;
  const int each = ((columns + rounds - 1) / rounds + length - 1) / length * length;
  const int count = each < columns ? each : columns, lanes = (count + runs * (2 * length - 2)) / length;
  return {each, lanes, threads / lanes / period * period};
}
/// Slots that `columns` columns of one row may lie in, none of them: 0.
ARK_ABI_BOTH constexpr int slots_of(int columns, int length) {
  return columns > 0 ? (columns + 2 * length - 2) / length : 0;
}

/// Rows after which `stride` elements a row are a multiple of `length` elements again.
ARK_ABI_BOTH constexpr int alignment_period(i64 stride, int length) {
  int period = 1;
  while ((period * stride & (length - 1)) != 0) period *= 2;
  return period;
}

/// Of `threads`, those that take vectors of a run of rows of `row` columns, `row` below `threads`: so many that a
/// thread's next vector begins at the same column.
ARK_ABI_BOTH constexpr int folding_threads(int row, int length, int threads) {
  int step = row;  // vectors after which that is so
  for (int shared = length; shared > 1 && step % 2 == 0; shared /= 2) step /= 2;
  return threads / step * step;
}

}  // namespace ark::abi
