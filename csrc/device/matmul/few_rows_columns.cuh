// One to sixteen rows of 16 bits times a weight [k][n] that streams through the ring: strips of 8, 16, 32 or 64
// columns.
//
// A page is [k][columns of the strip] as TMA swizzles it. ldmatrix turns 16 k x 16 columns into A of mma.m16n8k16 (of 8
// columns, the other half of A is zero), the activation is B. Of two lanes (gates, pairs), a strip has as many columns
// of each. Of a slice of 512 k a warp has the 64 that it has in strips of weight rows (abi/strip_vectors.h), all in one
// page; sums of the warps meet in shared memory. Of 32 k, fragments of several rows come with the 8 k that lie together
// in each lane: four lanes exchange words, so that A is read in the order of memory, which leaves no bank conflict. Of
// one row, B is read from shared memory, the same for all eight rows.
//
// Page sequence of an item: per window of k, per strip, per lane, its pages along k.
#pragma once
#include "device/loop/page_walk.cuh"
#include "device/matmul/few_rows_activation.cuh"

namespace ark::device {

/// Where a lane reads 16 k x 16 columns, and how strips of one lane lie in pages.
template <class Form>
struct ColumnPages {
  using R = Rows<Form>;
  static constexpr int kWidth = R::kColumns, kGroups = (kWidth + 15) / 16, kPageK = abi::column_page_k(kWidth);
  static constexpr bool kHalf = kWidth == 8;  // of A: its lower eight columns are there
  static constexpr int kPagesOfSlice = kPageK < abi::kColumnSliceK ? abi::kColumnSliceK / kPageK : 1;
  static constexpr int kSlicesOfPage = kPageK < abi::kColumnSliceK ? 1 : kPageK / abi::kColumnSliceK;
  static constexpr int kSliceBytes = abi::kColumnSliceK * kWidth * 2;  // of one that does not fill its page
  static constexpr int kSteps = 4, kStepBytes = 16 * kWidth * 2;       // of 16 k: a warp's in a slice

  int page;           // of a slice: this warp's
  u32 byte[kGroups];  // in the page: this lane's line of the first step, of each 16 columns

  ARK_DEVICE explicit ColumnPages(const Consumer& consumer) : page(consumer.warp() * 64 / kPageK) {
    const int lane = consumer.lane(), row = (lane & 7) + (lane >> 4) * 8;
    const u32 first = consumer.warp() * 64 % kPageK * (kWidth * 2);
    if constexpr (kHalf) {
      byte[0] = first + abi::column_byte(kWidth, lane, 0);
    } else {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) byte[g] = first + abi::column_byte(kWidth, row, 2 * g + (lane >> 3 & 1));
    }
  }
  /// A of all steps and columns, in flight together.
  ARK_DEVICE void load(u32 at, u32 (&a)[kSteps][kGroups][4]) const {
    if constexpr (kHalf) return load_half(at, a);
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
#pragma unroll
      for (int g = 0; g < kGroups; ++g) ldmatrix_x4_transposed(a[step][g], at + byte[g] + step * kStepBytes);
  }

 private:
  /// Eight columns: two steps at once.
  ARK_DEVICE void load_half(u32 at, u32 (&a)[kSteps][kGroups][4]) const {
#pragma unroll
    for (int step = 0; step < kSteps; step += 2) {
      u32 both[4];
      ldmatrix_x4_transposed(both, at + byte[0] + step * kStepBytes);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        u32(&one)[4] = a[step + i][0];
        one[0] = both[2 * i], one[2] = both[2 * i + 1];
        one[1] = one[3] = 0;
      }
    }
  }
};

/// Products of strips with an activation of several rows: the part of Strips (few_rows_strips.cuh). Column g = lane / 4
/// and g + 8 of 16, rows 2 (lane % 4) and the next one of 8.
template <class Form, MmaType kType>
struct ColumnStrips {
  using R = Rows<Form>;
  using Activation = RowsActivation<Form>;
  using Pages = ColumnPages<Form>;
  static constexpr int kBlocks = Activation::kBlocks, kGroups = Pages::kGroups;
  static constexpr int kUnits = R::kColumns, kWidth = kUnits * R::kLanes;  // of a strip: units, columns of all lanes
  using Sums = float[kGroups][kBlocks][4];                                 // of a lane
  /// Chains of products that wait for each other: one where the activation takes most registers.
  static constexpr int kChains = kGroups * kBlocks == 1 && Activation::kVectors <= 16 ? 2 : 1;

  // Of all columns of a strip, lane by lane, and all rows of the activation, a warp's; the stride keeps reads free of
  // conflicts.
  static constexpr int kSumStride = 8 * kBlocks + 2, kWarpSums = kWidth * kSumStride,
                       kStripSums = kConsumerWarps * kWarpSums;

  static ARK_DEVICE constexpr int pages_of_slice(int window, int slice) {
    const int left = R::kK - Activation::window_start(window) - slice * abi::kColumnSliceK;
    return left >= abi::kColumnSliceK ? Pages::kPagesOfSlice : (left + Pages::kPageK - 1) / Pages::kPageK;
  }
  /// Does nothing that follows in the window lie in the slice's pages?
  static ARK_DEVICE constexpr bool ends_page(int window, int slice) {
    return (slice + 1) % Pages::kSlicesOfPage == 0 || slice + 1 == Activation::slices_of(window);
  }
  template <int kWindow>
  static ARK_DEVICE constexpr int pages(int) {
    int count = 0;
    for (int slice = 0; slice < Activation::slices_of(kWindow); ++slice)
      if (ends_page(kWindow, slice)) count += pages_of_slice(kWindow, slice);
    return count * R::kLanes;
  }
  /// Where the sum of a unit's lane lies among those of a strip.
  static ARK_DEVICE int row_of(int unit, int lane) { return lane * kUnits + unit; }

  /// From 8 k a lane to 2 k of each 8, in four lanes of a row: word c of lane q becomes word q of lane c.
  static ARK_DEVICE void arrange(typename Activation::Fragments& b) {
    const int q = static_cast<int>(thread_index()) & 3;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block)
#pragma unroll
      for (int n = 0; n < Activation::kVectors; ++n) {
        exchange<1>(b[block][n][0], b[block][n][1], q);
        exchange<1>(b[block][n][2], b[block][n][3], q);
        exchange<2>(b[block][n][0], b[block][n][2], q);
        exchange<2>(b[block][n][1], b[block][n][3], q);
      }
  }

  /// This warp's share of the strip over the k of the window: into `to`, [column][kSumStride], lane by lane.
  template <int kWindow>
  static ARK_DEVICE void multiply(const Consumer& consumer, PageReader& pages, const typename Activation::Fragments& b,
                                  int, float* to) {
#pragma unroll
    for (int lane = 0; lane < R::kLanes; ++lane) {
      Sums sums;
      multiply_lane<kWindow>(consumer, pages, b, sums);
      store_sums(consumer, sums, to + row_of(0, lane) * kSumStride);
    }
  }
  /// The sum of one column and one row of the activation, over the warps in their order.
  static ARK_DEVICE float total(const float* sums, int column, int m) {
    float y = 0;
#pragma unroll
    for (int w = 0; w < kConsumerWarps; ++w) y += sums[w * kWarpSums + column * kSumStride + m];
    return y;
  }

 private:
  template <int kWindow>
  static ARK_DEVICE void multiply_lane(const Consumer& consumer, PageReader& pages,
                                       const typename Activation::Fragments& b, Sums& sums) {
    const Pages own(consumer);
    float chain[kChains][kGroups][kBlocks][4] = {};
    unrolled<Activation::slices_of(kWindow)>([&](auto slice) __attribute__((always_inline)) {
      constexpr int kSlice = decltype(slice)::value, kCount = pages_of_slice(kWindow, kSlice),
                    kStart = Activation::window_start(kWindow) + kSlice * abi::kColumnSliceK;
      constexpr bool kWhole = kStart + abi::kColumnSliceK <= R::kK;
      pages.wait(kCount);
      u32 a[Pages::kSteps][kGroups][4];
      own.load(pages.address(pages.slot_at(kWhole ? own.page : min(own.page, kCount - 1))) +
                   kSlice % Pages::kSlicesOfPage * Pages::kSliceBytes,
               a);
      if (kWhole || kStart + consumer.warp() * 64 < R::kK) {
#pragma unroll
        for (int step = 0; step < Pages::kSteps; ++step)
#pragma unroll
          for (int g = 0; g < kGroups; ++g)
#pragma unroll
            for (int block = 0; block < kBlocks; ++block) {
              const u32(&x)[4] = b[block][kSlice * 2 + step / 2];
              mma_16x8x16<kType>(chain[step % kChains][g][block], a[step][g], x[step % 2 * 2], x[step % 2 * 2 + 1]);
            }
      }
      if constexpr (ends_page(kWindow, kSlice)) {
        pages.release_next(kCount);
        pages.advance(kCount);
      }
    });
#pragma unroll
    for (int g = 0; g < kGroups; ++g)
#pragma unroll
      for (int block = 0; block < kBlocks; ++block)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          sums[g][block][e] = chain[0][g][block][e] + (kChains > 1 ? chain[kChains - 1][g][block][e] : 0);
  }

  static ARK_DEVICE void store_sums(const Consumer& consumer, const Sums& sums, float* to) {
    const int lane = consumer.lane();
    float* mine = to + consumer.warp() * kWarpSums + (lane >> 2) * kSumStride + (lane & 3) * 2;
#pragma unroll
    for (int g = 0; g < kGroups; ++g)
#pragma unroll
      for (int block = 0; block < kBlocks; ++block)
#pragma unroll
        for (int e = 0; e < (Pages::kHalf ? 2 : 4); ++e)
          mine[(g * 16 + (e >> 1) * 8) * kSumStride + block * 8 + (e & 1)] = sums[g][block][e];
  }
  /// Of two lanes whose numbers differ in kBit: the lower one's `second` for the upper one's `first`.
  template <int kBit>
  static ARK_DEVICE void exchange(u32& first, u32& second, int q) {
    const bool upper = (q & kBit) != 0;
    const u32 other = __shfl_xor_sync(~0u, upper ? first : second, kBit);
    first = upper ? other : first;
    second = upper ? second : other;
  }
};

/// One row, which lies in shared memory.
template <class Form, MmaType kType>
struct ColumnsOfRow {
  using R = Rows<Form>;
  using Pages = ColumnPages<Form>;
  static constexpr int kK = R::kK, kGroups = Pages::kGroups, kUnits = R::kColumns;
  static constexpr int kPagesOfLane = abi::column_pages(kK, kUnits), kPagesOfStrip = kPagesOfLane * R::kLanes;
  /// The row, to where the last warp's share of it ends.
  static constexpr int kActivationBytes = (kK + 63) / 64 * 64 * 2;
  static constexpr int kSumBytes = kConsumerWarps * abi::kMaxRowsPerItem * 4;
  static constexpr int kAtOnce = 4 / kGroups, kChains = kGroups == 1 ? 2 : 1;  // slices
  static constexpr int kPagesAtOnce = kAtOnce * abi::kColumnSliceK / Pages::kPageK;

  /// Zeros behind the row.
  static ARK_DEVICE void clear_end(const Consumer& consumer, unsigned char* row) {
    const int at = kK * 2 + consumer.thread() * 16;
    if (at < kActivationBytes) *reinterpret_cast<uint4*>(row + at) = {};
  }

  /// The warp's sums of one lane of a strip: at `sums` + warp * kMaxRowsPerItem.
  static ARK_DEVICE void run(const Consumer& consumer, PageReader& pages, const unsigned char* row, float* sums) {
    const Pages own(consumer);
    const int lane = consumer.lane();
    const u32 x = shared_address(row) + (lane >> 3) * 16;
    float chain[kChains][kGroups][4] = {};
#pragma unroll 1
    for (int page = 0; page < kPagesOfLane; page += kPagesAtOnce) {
      const int count = min(kPagesAtOnce, kPagesOfLane - page), first = page * Pages::kPageK;
      pages.wait(count);
      u32 a[kAtOnce][Pages::kSteps][kGroups][4], b[kAtOnce][2][4];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int k = first + i * abi::kColumnSliceK + consumer.warp() * 64, at = k < kK ? k : 0;
        const int of = i / Pages::kSlicesOfPage * Pages::kPagesOfSlice + own.page;
        own.load(pages.address(pages.slot_at(min(of, count - 1))) + i % Pages::kSlicesOfPage * Pages::kSliceBytes,
                 a[i]);
        ldmatrix_x4(b[i][0], x + at * 2);
        ldmatrix_x4(b[i][1], x + at * 2 + 64);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        if (first + i * abi::kColumnSliceK + consumer.warp() * 64 < kK) {
#pragma unroll
          for (int step = 0; step < Pages::kSteps; ++step)
#pragma unroll
            for (int g = 0; g < kGroups; ++g)
              mma_16x8x16<kType>(chain[step % kChains][g], a[i][step][g], b[i][step / 2][step % 2 * 2],
                                 b[i][step / 2][step % 2 * 2 + 1]);
        }
      pages.release_next(count);
      pages.advance(count);
    }
    // all eight rows are the same one
    float* to = sums + consumer.warp() * abi::kMaxRowsPerItem + (lane >> 2);
    if ((lane & 3) == 0) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g)
#pragma unroll
        for (int half = 0; half < (Pages::kHalf ? 1 : 2); ++half)
          to[g * 16 + half * 8] = chain[0][g][half * 2] + (kChains > 1 ? chain[kChains - 1][g][half * 2] : 0);
    }
    __syncwarp();
  }
  /// Of strips that follow each other: where the sum of a unit's lane lies.
  static ARK_DEVICE int row_of(int unit, int lane) {
    return (unit / kUnits * R::kLanes + lane) * kUnits + unit % kUnits;
  }
  static ARK_DEVICE float total(const float* sums, int column) {
    float y = 0;
#pragma unroll
    for (int w = 0; w < kConsumerWarps; ++w) y += sums[w * abi::kMaxRowsPerItem + column];
    return y;
  }
};

}  // namespace ark::device
