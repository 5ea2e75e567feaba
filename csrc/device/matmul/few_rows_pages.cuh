// One row of 16 bits through tensor cores: fragments of the activation, the walk over the pages of weights, sums of the
// pieces.
//
// The k axis is cut into pieces of 8 elements; a step of 128 elements is 8 pieces of the lower and 8 of the upper 64.
// ldmatrix turns 128 contiguous bytes of a weight row into 8 rows of the A fragment, one per piece (no bank conflicts,
// no swizzle); B holds the activation with the pieces as its 8 columns, so of the product only the diagonal counts: the
// sums per piece. Each of the 4 warps of a group takes every fourth step. Measured against CUDA cores: 0.15 us against
// 0.36 us per page.
//
// Pages. k <= 4096 (kPairs): a page holds 8192 / k rows, at most 64; the two halves of a fragment are two rows. Longer
// rows: a page holds one row or half of one (k > 8192); the halves of a fragment are the halves of its k range. Page p
// of the sequence belongs to consumer group p % 2: the number of slots is even, so a group's slots are its own and no
// phase can be missed.
#pragma once
#include "device/matmul/few_rows_form.cuh"

namespace ark::device {

inline constexpr int kRowsStep = 128;  // elements
/// Words per row of partial sums: 4 warps x 8 pieces, padded against bank conflicts.
inline constexpr int kRowsPartStride = 36;

/// This thread's place: step `quarter` of four, group of pages, lane.
struct RowsPlace {
  int group, quarter, lane;
  ARK_DEVICE explicit RowsPlace(int thread) : group(thread >> 7), quarter(thread >> 5 & 3), lane(thread & 31) {}
};

template <class Form, MmaType kType>
struct RowsPages {
  using R = Rows<Form>;
  static constexpr int kK = R::kK;
  static constexpr int kHalves = R::kPairs ? 1 : 2;
  /// Steps that one warp takes of a row (kPairs) or of half a page's row: 2048 elements are 4 of them.
  static constexpr int kStepsPerPage = R::kPairs ? (kK <= 2048 ? 4 : 8) : 8;
  static constexpr int kSteps = kStepsPerPage * R::kChunks;  // of all pages of a row together
  static constexpr bool kKeepsPieces = R::kChunks == 1;      // else the warp sums them up at once
  static constexpr int kFragments = kHalves * kSteps * 2;
  static_assert(kFragments <= 64, "k <= 16384: the planner's promise");
  using Fragments = u32[kFragments];
  /// Words of sums per slot.
  static constexpr int kSlotWords = kKeepsPieces ? kRowsPartStride : 4;

  static ARK_DEVICE constexpr int index(int h, int j, int w) { return (h * kSteps + j) * 2 + w; }
  /// Elements in the first half of a page's row (whole steps), and where half h of the row of a chunk begins and ends.
  static ARK_DEVICE constexpr int half(int chunk) { return (R::chunk_length(chunk) + 255) / 256 * 128; }
  static ARK_DEVICE constexpr int row_start(int h, int chunk) {
    return R::kPairs ? 0 : chunk * R::kChunkK + (h == 0 ? 0 : half(chunk));
  }
  static ARK_DEVICE constexpr int row_limit(int h, int chunk) {
    return R::kPairs ? kK : chunk * R::kChunkK + (h == 0 ? half(chunk) : R::chunk_length(chunk));
  }

  /// This lane's part of B: word w of a step covers elements 2w and 2w + 1. `staged`: elements [begin, end) of the
  /// row; those outside keep what they had (b starts as zero).
  template <bool kWhole>
  static ARK_DEVICE void load_fragments(Fragments& b, const unsigned char* staged, int begin, int end,
                                        const RowsPlace& at) {
    const int mine = at.quarter * kRowsStep + at.lane * 2;
    unrolled<kHalves * R::kChunks>([&](auto n) __attribute__((always_inline)) {
      constexpr int h = n.value % kHalves, chunk = n.value / kHalves;
      constexpr int kStart = row_start(h, chunk), kLimit = row_limit(h, chunk);
#pragma unroll
      for (int j = 0; j < kStepsPerPage; ++j)
#pragma unroll
        for (int w = 0; w < 2; ++w) {
          constexpr bool kFull = kWhole && (kLimit - kStart) % (kStepsPerPage * 4 * kRowsStep) == 0;
          const int e = kStart + mine + j * 512 + w * 64;
          if (kFull || (e < kLimit && (kWhole || (e >= begin && e < end))))
            b[index(h, chunk * kStepsPerPage + j, w)] = *reinterpret_cast<const u32*>(staged + (e - begin) * 2);
        }
    });
  }

  /// This group's pages of an item: `pages` of them from page number `first` of the sequence on.
  static ARK_DEVICE void run(Consumer& consumer, const Fragments& b, float* sums, u32 first, int pages,
                             const RowsPlace& at) {
    const u32 zeros = shared_address(consumer.worker.shared.zeros);
    // the lane's 16 bytes of a fragment: row of the 8 x 8 matrix = piece, matrices 0 and 2: lower and upper 64 elements
    const int piece = (at.lane & 7) * 8 + (at.lane >> 4 & 1) * 64, lower = at.lane >> 3 & 1;
    const int element = at.quarter * kRowsStep + piece;
#pragma unroll 1
    for (int i = (at.group - static_cast<int>(first)) & 1; i < pages; i += 2) {
      const u32 data = shared_address(consumer.wait_page(first + i));
      if constexpr (R::kPairs) {
        // pairs of rows in registers: 8 fragments
        constexpr int kAtOnce = 8 / kSteps, kNumPairs = (R::kRowsPerPage + 1) / 2;
        const u32 address = data + (lower * kK + element) * 2;
#pragma unroll 1
        for (int pair = 0; pair < kNumPairs; pair += kAtOnce) {
          u32 a[kAtOnce][kSteps][4];
#pragma unroll
          for (int q = 0; q < kAtOnce; ++q)
#pragma unroll
            for (int j = 0; j < kSteps; ++j) {
              const bool inside = kK % (kSteps * 512) == 0 || element + j * 512 < kK;
              ldmatrix_x4(a[q][j], inside ? address + ((pair + q) * 2 * kK + j * 512) * 2 : zeros);
            }
          if (pair + kAtOnce >= kNumPairs) release(consumer, first + i, at);
          const int slot = i * R::kRowsPerPage + pair * 2;
#pragma unroll
          for (int q = 0; q < kAtOnce; ++q)
            if (kNumPairs % kAtOnce == 0 || pair + q < kNumPairs) {
              float c[4] = {};
              multiply(c, a[q], b);
              const bool two = R::kRowsPerPage % 2 == 0 || pair * 2 + q * 2 + 1 < R::kRowsPerPage;
              store_sums(c, sums, slot + q * 2, two, at);
            }
        }
      } else {
        constexpr int kPerPage = 8;
        const int chunk = R::kChunks == 1 ? 0 : i % R::kChunks;
        const int length = R::kChunks == 1 ? kK : R::chunk_length(chunk), middle = (length + 255) / 256 * 128;
        const int limit = lower ? length - middle : middle;
        const bool full = R::kChunks == 1 && kK == 2 * kPerPage * 4 * kRowsStep;
        const u32 address = data + (lower * middle + element) * 2;
        u32 a[kPerPage][4];
#pragma unroll
        for (int j = 0; j < kPerPage; ++j)
          ldmatrix_x4(a[j], full || element + j * 512 < limit ? address + j * 1024 : zeros);
        release(consumer, first + i, at);
        if (kSteps <= kPerPage || chunk == 0)
          multiply_halves<0>(a, b, sums, i, at);
        else
          multiply_halves<kSteps - kPerPage>(a, b, sums, i, at);
      }
    }
  }

  /// The sum of one weight row, over warps (and pieces, and pages of the row) in a fixed order.
  static ARK_DEVICE float total(const float* sums, int slot) {
    float y = 0;
    if constexpr (kKeepsPieces) {
      const float4* part = reinterpret_cast<const float4*>(sums + slot * kRowsPartStride);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float4 v = part[j];
        y += (v.x + v.y) + (v.z + v.w);
      }
    } else {
      const float4* part = reinterpret_cast<const float4*>(sums) + slot;
#pragma unroll
      for (int c = 0; c < R::kChunks; ++c) {
        const float4 v = part[c];
        y += (v.x + v.y) + (v.z + v.w);
      }
    }
    return y;
  }

 private:
  static ARK_DEVICE void release(const Consumer& consumer, u32 page, const RowsPlace& at) {
    __syncwarp();
    if (at.lane == 0) mbarrier_arrive(&consumer.worker.shared.empty[page % kPages], 2);
  }

  /// One page's row: upper and lower halves of the fragments meet different halves of the activation.
  template <int kFirst>
  static ARK_DEVICE void multiply_halves(const u32 (&a)[8][4], const Fragments& b, float* sums, int slot,
                                         const RowsPlace& at) {
    float c0[4] = {}, c1[4] = {}, d0[4] = {}, d1[4] = {};
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      mma_16x8x16<kType>(c0, a[j], b[index(0, kFirst + j, 0)], b[index(0, kFirst + j, 1)]);
      mma_16x8x16<kType>(d0, a[j], b[index(kHalves - 1, kFirst + j, 0)], b[index(kHalves - 1, kFirst + j, 1)]);
      mma_16x8x16<kType>(c1, a[j + 1], b[index(0, kFirst + j + 1, 0)], b[index(0, kFirst + j + 1, 1)]);
      mma_16x8x16<kType>(d1, a[j + 1], b[index(kHalves - 1, kFirst + j + 1, 0)],
                         b[index(kHalves - 1, kFirst + j + 1, 1)]);
    }
    // both halves belong to one row: their sum, in the upper half's place
    float row[4] = {};
#pragma unroll
    for (int e = 0; e < 2; ++e) row[e] = (c0[e] + c1[e]) + (d0[e + 2] + d1[e + 2]);
    store_sums(row, sums, slot, false, at);
  }

  /// c = a * b over kSteps steps, in two chains.
  static ARK_DEVICE void multiply(float (&c)[4], const u32 (&a)[kSteps][4], const Fragments& b) {
    float d[4] = {};
#pragma unroll
    for (int e = 0; e < 4; ++e) c[e] = 0.0f;
#pragma unroll
    for (int j = 0; j < kSteps; j += 2) {
      mma_16x8x16<kType>(c, a[j], b[index(0, j, 0)], b[index(0, j, 1)]);
      mma_16x8x16<kType>(d, a[j + 1], b[index(0, j + 1, 0)], b[index(0, j + 1, 1)]);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) c[e] += d[e];
  }

  /// The diagonals of the products: piece i of the upper row in lane 4 i + i / 2 (elements 0 and 1), of the lower row
  /// in elements 2 and 3. Of whole rows the pieces are stored and summed at the end; of halves, summed over the warp
  /// here.
  static ARK_DEVICE void store_sums(const float (&c)[4], float* sums, int slot, bool two, const RowsPlace& at) {
    const int lane = at.lane;
    const bool useful = (lane & 3) == (lane >> 3), odd = lane & 4;
    if constexpr (kKeepsPieces) {
      float* to = sums + slot * kRowsPartStride + at.quarter * 8 + (lane >> 2);
      if (useful) {
        to[0] = odd ? c[1] : c[0];
        if (two) to[kRowsPartStride] = odd ? c[3] : c[2];
      }
    } else {
      float v[2] = {useful ? (odd ? c[1] : c[0]) : 0.0f, useful ? (odd ? c[3] : c[2]) : 0.0f};
      const float sum = transpose_sum<2>(v, lane);  // of the upper row in lane 0, of the lower one in lane 16
      if (lane % 16 == 0 && (lane == 0 || two)) sums[(slot + lane / 16) * 4 + at.quarter] = sum;
    }
  }
};

}  // namespace ark::device
