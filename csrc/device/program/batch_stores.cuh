// Values that the tiles of each batch of a product store through an operand of their own (codegen/batch_stores.h).
#pragma once
#include "device/program/operand.cuh"

namespace ark::device {

/// Batch 0 stores through operand kOfFirst, batch b of the others through kOfSecond + b - 1, those from kBatches on
/// nowhere.
template <int kBatches, int kOfFirst, int kOfSecond>
struct BatchStores {
  static constexpr int kOperand = kOfFirst;  // stands for all of them in the program
  static ARK_DEVICE bool stores(i32 batch) { return batch < kBatches; }
  /// For batches that do not store the last one.
  static ARK_DEVICE int operand(i32 batch) {
    const int number = min(batch, kBatches - 1);
    return kOfSecond == kOfFirst + 1 ? kOfFirst + number : number == 0 ? kOfFirst : kOfSecond - 1 + number;
  }
};

template <class ByBatch, int V, class S, int kDims>
ARK_DEVICE void store_by_batch(const ProgramContext& c, const i32 (&x)[kDims], const Vec<S, V>& in) {
  if (ByBatch::stores(x[0])) store_operand<V>(c, ByBatch::operand(x[0]), x, in);
}

}  // namespace ark::device
