// Sizes of the elements of a pointwise program's operands: known with the program, where the record would be asked.
#pragma once
#include "device/ptx/base.cuh"

namespace ark::device {

/// The logarithm of the bytes of an element.
template <class P>
ARK_DEVICE constexpr int operand_shift(int i) {
  return static_cast<int>(P::kOperandShifts >> (2 * i) & 3);
}
/// Elements of a vector of V that one access of it moves.
template <class P, int V>
ARK_DEVICE constexpr int operand_together(int i) {
  return V < 16 >> operand_shift<P>(i) ? V : 16 >> operand_shift<P>(i);
}

}  // namespace ark::device
