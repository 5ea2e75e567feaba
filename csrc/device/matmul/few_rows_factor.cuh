// Factors of a few-row product's rows that are known after its sums have begun: what a norm without a mean divides a
// row by. The prologue hands on elements without it and adds up what it is made of on the same walk; nobody waits for
// the reduction before the products, and the epilogue multiplies a sum over k by its row's factor.
#pragma once
#include "device/matmul/few_rows_fragments.cuh"
#include "device/program/row_group.cuh"

namespace ark::device {

/// Sums of squares of eight rows, of which a lane has fragments: the products of each row with all of them, of which
/// its own are wanted. Of two words together, the first's are in the lower rows of the one, the second's in the upper
/// rows of the other. Two loads, four products of words and four of matrices a vector are all that a norm executes:
/// 1000 instructions for 8 rows of 4096, fetched anew by every layer, took as long as an op of rows with its hop.
struct SquaresOfRows {
  float lower[4], upper[4];

  ARK_DEVICE void start() {
#pragma unroll
    for (int i = 0; i < 4; ++i) lower[i] = upper[i] = 0;
  }
  ARK_DEVICE void add(const u32 (&x)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      mma_16x8x8(lower, x[i], x[i + 1], x[i]);
      mma_16x8x8(upper, x[i], x[i + 1], x[i + 1]);
    }
  }
  /// Of row g = lane / 4 in the lane that has column g of its products: lane % 4 = g / 2.
  static ARK_DEVICE bool has_sum(int lane) { return (lane & 3) == lane >> 3; }
  ARK_DEVICE float sum(int lane) const {
    const bool odd = (lane >> 2 & 1) != 0;
    return odd ? lower[1] + upper[3] : lower[0] + upper[2];
  }
};

/// What the last pass adds up, of a prologue with a factor its reduction, else nothing; and what a warp has of a row.
template <class P, bool kOfSquares = P::kOfSquares>
struct FactorParts {
  using Accumulator = decltype(P::accumulator(Pass<P::kPasses - 1>{}));
  using Part = Accumulator;
};
template <class P>
struct FactorParts<P, true> {
  using Accumulator = SquaresOfRows;
  using Part = float;
};

template <class Form>
struct RowsFactor {
  using F = RowsFragments<Form>;
  using P = typename Form::Prologue;
  using Accumulator = typename FactorParts<P>::Accumulator;
  using Part = typename FactorParts<P>::Part;
  using Accumulators = Accumulator[F::kBlocks];
  static constexpr bool kScales = P::kScaled, kOfSquares = P::kOfSquares;
  static_assert(!kScales || P::kPasses == 1);  // so that no other reduction uses the shared memory
  /// Shared memory: [row][warp].
  static constexpr int kBytes = kScales ? 8 * F::kBlocks * kConsumerWarps * static_cast<int>(sizeof(Part)) : 0;

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
        Part& mine = reinterpret_cast<Part*>(shared)[(block * 8 + (lane >> 2)) * kConsumerWarps + consumer.warp()];
        if constexpr (kOfSquares) {
          const float sum = of[block].sum(lane);  // by all lanes, so that no product stands behind the branch
          if (SquaresOfRows::has_sum(lane)) mine = sum;
        } else {
          Part sum = of[block];
          merge_lanes_of<4>(sum, lane);
          if ((lane & 3) == 0) mine = sum;
        }
      }
    }
  }
  /// Behind that barrier.
  static ARK_DEVICE float scaled(float y, const unsigned char* shared, int m) {
    if constexpr (!kScales) return y;
    if constexpr (kScales) {
      const Part* row = reinterpret_cast<const Part*>(shared) + m * kConsumerWarps;
      typename P::Uniform u{};
      if constexpr (kOfSquares) {
        float squares = row[0];
#pragma unroll
        for (int w = 1; w < kConsumerWarps; ++w) squares += row[w];
        P::finish(squares, u);
      } else {
        P::finish(merged_over_warps(row), u);
      }
      return y * P::factor(u);
    }
  }
};

}  // namespace ark::device
