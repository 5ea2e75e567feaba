// Several rows of 16 bits (m <= 16) times a weight [n][k] that streams through the ring: strips of 16 weight rows.
//
// mma.m16n8k16 takes 16 weight rows as A and eight rows of the activation as B. B stays in registers for all strips of
// an item; the k of a page is split over the eight warps, whose sums meet in shared memory once a strip. The order of k
// within an mma is free as long as A and B agree: of 32 k, lane q of a row has the 8 that lie together at 8 q, so both
// are read as they lie, by 16 bytes. Rows of a page lie a multiple of 128 bytes apart: odd rows read their halves of 64
// k in the other order, which leaves no bank conflict.
//
// Page sequence of an item: per window of k, per strip, per slice of k: the pages of the strip's rows, those that are
// there. Of one lane, the strip's rows are those of 16 units; of two, eight units' first lanes, then their second.
#pragma once
#include "device/loop/page_walk.cuh"
#include "device/matmul/few_rows_activation.cuh"
#include "device/matmul/few_rows_columns.cuh"

namespace ark::device {

/// Products of strips with the activation. Row g = lane / 4, q = lane % 4.
template <class Form, MmaType kType>
struct Strips {
  using R = Rows<Form>;
  using Activation = RowsActivation<Form>;
  static constexpr int kBlocks = Activation::kBlocks;
  static constexpr int kWidth = abi::kStripRows, kUnits = kWidth / R::kLanes;  // of a strip: weight rows, units
  using Sums = float[kBlocks][4];
  /// Products in flight: one chain where the activation takes most registers, or of each of two blocks.
  static constexpr int kChains = kBlocks * Activation::kVectors <= 16 ? 2 : 1;
  /// Rounds whose loads from shared memory are in flight, as far as registers allow.
  static constexpr int kAhead = kBlocks * Activation::kVectors <= 16 ? 4 : 2;

  // Of 16 weight rows and all rows of the activation, a warp's; the stride keeps reads of a column free of conflicts.
  static constexpr int kSumStride = 8 * kBlocks + 2, kWarpSums = abi::kStripRows * kSumStride,
                       kStripSums = kConsumerWarps * kWarpSums;

  static constexpr int kPageRows = abi::strip_page_rows(R::kK), kPagesOfHalf = 8 / kPageRows;  // of eight rows
  static constexpr int kRowBytes = abi::strip_row_bytes(R::kK);

  /// Pages of a half (eight rows) of which `rows` are there.
  static ARK_DEVICE int pages_of_half(int rows) { return min(kPagesOfHalf, (rows + kPageRows - 1) / kPageRows); }
  /// Pages that a slice of a strip of `units` units takes.
  static ARK_DEVICE int pages_of_slice(int units) {
    return R::kLanes == 2 ? 2 * pages_of_half(units) : (units + kPageRows - 1) / kPageRows;
  }

  /// Pages of a strip over the k of a window.
  template <int kWindow>
  static ARK_DEVICE int pages(int units) {
    return pages_of_slice(units) * Activation::slices_of(kWindow);
  }
  /// Where the sum of a unit's lane lies among those of a strip.
  static ARK_DEVICE int row_of(int unit, int lane) { return lane * 8 + unit; }
  /// Fragments have the order of k in which weights are read.
  static ARK_DEVICE void arrange(typename Activation::Fragments&) {}

  /// This warp's share of the strip over the k of the window: into `to`, [16 rows][kSumStride].
  template <int kWindow>
  static ARK_DEVICE void multiply(const Consumer& consumer, PageReader& pages, const typename Activation::Fragments& b,
                                  int units, float* to) {
    const int lane = consumer.lane(), g = lane >> 2, q = lane & 3, count = pages_of_slice(units);
    // odd rows: the second half first
    const u32 first = g % kPageRows * kRowBytes + abi::strip_vector_byte(0, g & 1, consumer.warp(), q);
    // the pages of this lane's rows; rows that are not there read any
    const int of_half = R::kLanes == 2 ? pages_of_half(units) : kPagesOfHalf;
    const int upper_page = min(g / kPageRows, count - 1), lower_page = min(of_half + g / kPageRows, count - 1);
    float chain[kBlocks][kChains][4] = {};
    unrolled<Activation::slices_of(kWindow)>([&](auto slice) __attribute__((always_inline)) {
      constexpr int kSlice = decltype(slice)::value, kRounds = Activation::rounds_of(kWindow, kSlice);
      pages.wait(count);
      const u32 upper = pages.address(pages.slot_at(upper_page)) + first,
                lower = pages.address(pages.slot_at(lower_page)) + first;
      uint4 raw[kAhead][4];
      unrolled<min_of(kAhead, kRounds)>([&](auto round) __attribute__((always_inline)) {
        constexpr int kRound = decltype(round)::value;
        load_round<kRound>(upper, lower, raw[kRound]);
      });
      unrolled<kRounds>([&](auto round) __attribute__((always_inline)) {
        constexpr int kRound = decltype(round)::value, kVector = abi::strip_vector(R::kK, kSlice, kRound, 0);
        uint4 a[2][2];  // half of 64 k, upper or lower rows
        order_halves<kWindow, kVector>(consumer, g, q, raw[kRound % kAhead], a);
        if constexpr (kRound + kAhead < kRounds) load_round<kRound + kAhead>(upper, lower, raw[kRound % kAhead]);
#pragma unroll
        for (int block = 0; block < kBlocks; ++block)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const u32(&x)[4] = b[block][kVector + half];
            const uint4 &top = a[half][0], &bottom = a[half][1];
            mma_16x8x16<kType>(chain[block][0], {top.x, bottom.x, top.y, bottom.y}, x[0], x[1]);
            mma_16x8x16<kType>(chain[block][kChains - 1], {top.z, bottom.z, top.w, bottom.w}, x[2], x[3]);
          }
      });
      pages.release_next(count);
      pages.advance(count);
    });
    Sums sums;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        sums[block][e] = chain[block][0][e] + (kChains > 1 ? chain[block][kChains - 1][e] : 0);
    float* mine = to + consumer.warp() * kWarpSums + g * kSumStride + q * 2;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block)
#pragma unroll
      for (int e = 0; e < 4; ++e) mine[(e >> 1) * 8 * kSumStride + block * 8 + (e & 1)] = sums[block][e];
  }
  /// The sum of one weight row and one row of the activation, over the warps in their order.
  static ARK_DEVICE float total(const float* sums, int row, int m) {
    float y = 0;
#pragma unroll
    for (int w = 0; w < kConsumerWarps; ++w) y += sums[w * kWarpSums + row * kSumStride + m];
    return y;
  }

 private:
  static ARK_DEVICE constexpr int min_of(int a, int b) { return a < b ? a : b; }

  /// The lane's vectors of 64 k: two of its row of the upper eight, then two of the lower. No branch: loads of all
  /// rounds in flight are issued together.
  template <int kRound>
  static ARK_DEVICE void load_round(u32 upper, u32 lower, uint4 (&raw)[4]) {
    constexpr int kBytes = abi::strip_vector_byte(kRound, 0, 0, 0);
    raw[0] = shared_load4(upper + kBytes);
    raw[1] = shared_load4((upper ^ 64) + kBytes);
    raw[2] = shared_load4(lower + kBytes);
    raw[3] = shared_load4((lower ^ 64) + kBytes);
  }
  /// a[half of 64 k][upper or lower rows]. Behind the row's end a page holds what was there before.
  template <int kWindow, int kVector>
  static ARK_DEVICE void order_halves(const Consumer& consumer, int g, int q, const uint4 (&raw)[4], uint4 (&a)[2][2]) {
    const bool odd = (g & 1) != 0;
#pragma unroll
    for (int rows = 0; rows < 2; ++rows) {
      const uint4 &one = raw[2 * rows], &other = raw[2 * rows + 1];
      a[0][rows] = {odd ? other.x : one.x, odd ? other.y : one.y, odd ? other.z : one.z, odd ? other.w : one.w};
      a[1][rows] = {odd ? one.x : other.x, odd ? one.y : other.y, odd ? one.z : other.z, odd ? one.w : other.w};
    }
    if constexpr (!Activation::whole(kWindow, kVector)) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        if (Activation::place(kWindow, kVector + half, consumer.warp(), q) >= R::kK) a[half][0] = a[half][1] = {};
    }
  }
};

/// The products of a form, by how its weights lie.
template <class Form, MmaType kType, bool kOfColumns = Rows<Form>::kColumns != 0>
struct StripsOf {
  using Type = Strips<Form, kType>;
};
template <class Form, MmaType kType>
struct StripsOf<Form, kType, true> {
  using Type = ColumnStrips<Form, kType>;
};

/// A few-row product whose activation has several rows.
template <class Form, MmaType kType, class S>
struct StripsTask {
  using R = Rows<Form>;
  using Activation = RowsActivation<Form>;
  using Product = typename StripsOf<Form, kType>::Type;
  static constexpr int kWindows = Activation::kWindows;
  static constexpr int kSumBytes = 2 * Product::kStripSums * 4;  // of this strip and the one before
  static constexpr int kHeldBytes = kWindows > 1 ? abi::kMaxRowsPerItem * 8 * Activation::kBlocks * 4 : 0;
  static_assert(8 * Activation::kBlocks * Product::kWidth <= kConsumerThreads);
  static_assert(kSumBytes + kHeldBytes + Activation::kReduceBytes <= kScratchBytes);

  static ARK_DEVICE void consume(Consumer& consumer, const Task& task) {
    consumer.wait_for_item(task);
    consumer.staged = -1;
    consumer.stamp(1);
    unsigned char* scratch = consumer.scratch();
    float* sums = reinterpret_cast<float*>(scratch);
    float* held = reinterpret_cast<float*>(scratch + kSumBytes);  // [row of the item][row of the activation]
    unsigned char* reduction = scratch + kSumBytes + kHeldBytes;
    Activation::Reduction::reduce(consumer, task, reduction);
    consumer.stamp(2);
    PageReader pages(consumer);
    u32 seen = 0;
    int buffer = 0;
    typename Activation::Factor::Accumulators factors;
    Activation::Factor::start(factors);
    unrolled<kWindows>([&](auto window) __attribute__((always_inline)) {
      constexpr int kWindow = decltype(window)::value;
      typename Activation::Fragments b;
      Activation::template load<kWindow, S>(consumer, task, reduction, b, factors);
      if constexpr (kWindow + 1 == kWindows) Activation::Factor::share(consumer, factors, reduction);
      Product::arrange(b);
      if (kWindow == 0) {
        if constexpr (kTrace) consumer.wait_end = global_time_ns();  // the activation is there
        consumer.stamp(3);
      }
      int row = 0;
      for_each_segment<Form>(task, [&](auto segment, const auto& range, int, int) __attribute__((always_inline)) {
#pragma unroll 1
        for (int unit = 0; unit < range.count; unit += Product::kUnits) {
          const int units = min(Product::kUnits, range.count - unit);
          run_strip<decltype(segment), kWindow>(consumer, task, pages, b, range.first + unit, units,
                                                sums + buffer * Product::kStripSums, held + row * kHeldStride,
                                                reduction, buffer);
          seen += Product::template pages<kWindow>(units);
          row += Product::kWidth;
          buffer ^= 1;
        }
      });
    });
    consumer.advance(seen);
    consumer.mark_loaded();
    consumer.stamp(8);
  }

 private:
  static constexpr int kHeldStride = 8 * Activation::kBlocks;

  /// Units [first, first + units) of segment G over one window; in the last one, their epilogue: a thread has one row
  /// of the activation, unit and lane. Half of the warps have an epilogue of eight rows, by turns.
  template <class G, int kWindow>
  static ARK_DEVICE void run_strip(Consumer& consumer, const Task& task, PageReader& pages,
                                   const typename Activation::Fragments& b, int first, int units, float* sums,
                                   float* held, const unsigned char* factors, int turn) {
    using P = typename G::Program;
    constexpr bool kLast = kWindow + 1 == kWindows;
    constexpr int kElements = kHeldStride * Product::kWidth, kTurn = kElements < kConsumerThreads ? 128 : 0;
    const int thread = (consumer.thread() + turn * kTurn) & (kConsumerThreads - 1);
    const int m = thread / Product::kWidth, at = thread % Product::kWidth;
    const int lane = R::kLanes == 2 ? at & 1 : 0, unit = R::kLanes == 2 ? at >> 1 : at;
    const int row = Product::row_of(unit, lane);          // of the strip
    const bool mine = m < R::rows(task) && unit < units;  // the others load what is another thread's
    const ProgramContext c(task, G::kFirstOperand, consumer.worker);
    i32 x[P::kDims] = {};
    x[P::kDims - 2] = min(m, R::rows(task) - 1);
    x[P::kDims - 1] = G::column(first + min(unit, units - 1), lane);
    // what the epilogue reads is asked for before the pages have come
    typename P::template Inputs<1> in;
    if constexpr (kLast)
      if (thread < kElements) P::template load<1>(c, x, in);

    Product::template multiply<kWindow>(consumer, pages, b, units, sums);
    consumer.sync();
    if (thread >= kElements) return;  // whole warps
    float y = Product::total(sums, row, m);
    if constexpr (kWindows > 1) {
      float& so_far = held[row * kHeldStride + m];
      if (kWindow > 0) y += so_far;
      if (!kLast) so_far = y;
    }
    if constexpr (kLast) {
      y = Activation::Factor::scaled(y, factors, m);
      UnitRoots roots{y, 0, R::kGated};
      if constexpr (R::kLanes == 2) roots.other = __shfl_xor_sync(~0u, y, 1);
      if (mine && !(R::kGated && lane == 1)) P::template run_loaded<1>(c, x, in, roots);
    }
  }
};

}  // namespace ark::device
