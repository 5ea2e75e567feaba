// How the epilogues of products in tiles move their vectors (device/matmul/epilogue.cuh). Each way is a copy of the
// program in the function that holds the main loops, whose size is most of a kernel's compile time: a kernel has those
// ways that its products take.
#pragma once
#include <cstdint>

#include "codegen/batch_stores.h"
#include "device/abi/variants.h"
#include "ir/program.h"
#include "plan/plan.h"

namespace ark::codegen {

using abi::EpilogueWay;

/// What the choice needs to know of a program, whatever the sizes.
struct EpilogueShape {
  int vector = 1;       // elements
  uint32_t stores = 0;  // operands reached by coordinates alone that are stored,
  uint32_t walked = 0;  // stored or loaded
  int num_operands = 0;
  bool pairs = false;    // it reads accumulators of other columns
  BatchStores by_batch;  // its `first` is among `stores` and stands for the others
  /// Whether lanes walk over the operands by addresses; else they reach them by coordinates and strides.
  bool walks() const;
};
EpilogueShape epilogue_shape(const Program& program);

/// The way of one op, a kMatmulTile whose epilogue has this shape.
EpilogueWay epilogue_way(const EpilogueShape& shape, const plan::Op& op);

/// Whether code with the ways `has` serves what `needs` some: single elements serve pairs too.
inline bool has_epilogue_ways(uint32_t has, uint32_t needs) {
  if ((has & abi::kSingleElements) != 0) needs &= ~abi::kTwoElements;
  return (needs & ~has) == 0;
}

}  // namespace ark::codegen
