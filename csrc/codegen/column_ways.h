// Which ways the tiles of a column op take (abi::ColumnWay), as device/program/column.cuh chooses among all of them.
//
// The device looks at addresses. Those of slots divide by 16 bytes (callers' tensors that do not are copied:
// bindings/graph/call.cpp), and more is not known: where the place of a vector of more bytes decides, both are named.
#pragma once
#include <cstdint>

#include "device/abi/abi.h"

namespace ark::codegen {

/// A column program: the constants of its struct (device/program/support.cuh) by their names there.
struct ColumnShape {
  int dims = 1, reduce_dims = 1, num_operands = 0, vector = 1;
  bool plain = false, folds = false;
  uint32_t loads = 0, vector_loads = 0;

  bool walks() const;  // kColumnsWalk
};

/// abi::ColumnWay, of an op with this record as the planner has it. `operands`: the program's own, by its numbers.
/// `threads`: consumers of a worker (device/loop/pipeline.cuh).
uint32_t column_ways(const ColumnShape& shape, const abi::OpRecord& record, const abi::Operand* operands,
                     int threads = 256);

}  // namespace ark::codegen
