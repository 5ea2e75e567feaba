// The ways that the tiles of a column op take through device/program/column.cuh. Each is a copy of the program's loop:
// a kernel has those that its ops take (codegen/column_ways.h).
#pragma once
#include "device/abi/abi.h"

namespace ark::abi {

/// Bits.
enum ColumnWay : u32 {
  kColumnWhole = 1,         // vectors, all of them aligned
  kColumnAsking = 2,        // vectors, by loads that ask how
  kColumnSingle = 4,        // single elements
  kColumnSlots = 8,         // slots of rows off alignment, where all that is read by vectors is off alike,
  kColumnSlotsAsking = 16,  // and where it is not
  kColumnFolded = 32        // rows of few columns, as runs
};
inline constexpr u32 kAllColumnWays = 63;

/// Whether addresses and distances of all operands go in registers: they leave enough of these for the vectors in
/// flight.
ARK_ABI_BOTH constexpr bool columns_walk(int reduce_dims, bool plain, u32 vector_loads, int num_operands) {
  return reduce_dims == 1 && plain && vector_loads != 0 && num_operands > 0 && num_operands <= 6;
}

}  // namespace ark::abi
