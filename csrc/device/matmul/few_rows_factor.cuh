// Factors of a few-row product's rows that are known after its sums have begun: what a norm without a mean divides a row
// by. The prologue hands on elements without it and adds up what it is made of on the same walk; nobody waits for the
// reduction before the products, and the epilogue multiplies a sum over k by its row's factor.
#pragma once
#include "device/matmul/few_rows_fragments.cuh"
#include "device/program/row_group.cuh"

namespace ark::device {

template <class Form>
struct RowsFactor {
  using F = RowsFragments<Form>;
  using P = typename Form::Prologue;
  static constexpr bool kScales = P::kScaled;
  /// Of the last pass: of a prologue with a factor its reduction, else nothing.
  using Accumulator = decltype(P::accumulator(Pass<P::kPasses - 1>{}));
  using Accumulators = Accumulator[F::kBlocks];
  /// Shared memory: [row][warp].
  static constexpr int kBytes = kScales ? 8 * F::kBlocks * kConsumerWarps * static_cast<int>(sizeof(Accumulator)) : 0;

  static ARK_DEVICE void start(Accumulators& of) {
#pragma unroll
    for (int block = 0; block < F::kBlocks; ++block) of[block].start();
  }
  /// What the lanes of a row have added up, in their order. The next barrier shows it to all.
  static ARK_DEVICE void share(const Consumer& consumer, const Accumulators& of, unsigned char* shared) {
    if constexpr (kScales) {
      const int lane = consumer.lane();
#pragma unroll
      for (int block = 0; block < F::kBlocks; ++block) {
        Accumulator sum = of[block];
        merge_lanes_of<4>(sum, lane);
        Accumulator* row = reinterpret_cast<Accumulator*>(shared) + (block * 8 + (lane >> 2)) * kConsumerWarps;
        if ((lane & 3) == 0) row[consumer.warp()] = sum;
      }
    }
  }
  /// Behind that barrier.
  static ARK_DEVICE float scaled(float y, const unsigned char* shared, int m) {
    if constexpr (!kScales) return y;
    if constexpr (kScales) {
      const Accumulator* row = reinterpret_cast<const Accumulator*>(shared) + m * kConsumerWarps;
      typename P::Uniform u{};
      P::finish(merged_over_warps(row), u);
      return y * P::factor(u);
    }
  }
};

}  // namespace ark::device
