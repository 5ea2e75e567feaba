// kMatmulRows: a few rows times a weight that streams through the ring. Code per form (few_rows_form.cuh).
//
// One row of 16 bits: few_rows_pages.cuh has the products. The activation is the prologue's result: computed by every
// worker for itself into shared memory, then kept as B fragments in registers for the whole item, of up to
// kMaxRowsPerItem weight rows (at most 64 fragments: k <= 16384). A second item of the same op finds it still there.
// Several rows of 16 bits: few_rows_strips.cuh. Weights [k][n]: few_rows_columns.cuh.
//
// Weights of fp32 are read by the consumers themselves and multiplied on the CUDA cores; no pages.
#pragma once
#include "device/matmul/few_rows_loader.cuh"
#include "device/matmul/few_rows_pages.cuh"
#include "device/matmul/few_rows_strips.cuh"
#include "device/program/row_walk.cuh"

namespace ark::device {

/// A prologue's activation on its way into shared memory: elements [first, end) of the row; others are dropped.
template <class S>
struct ActivationSink {
  S* row;  // of element `first`
  int first, end;

  struct At {
    S* to;
    template <int V, class T>
    ARK_DEVICE void yield(const T (&value)[V]) const {
      if (to == nullptr) return;
      Vec<S, V> out;
      ARK_EACH out.v[i] = narrow<S>(value[i]);
      *reinterpret_cast<Vec<S, V>*>(to) = out;
    }
  };
  ARK_DEVICE At at(i64 e) const { return {e >= first && e < end ? row + (e - first) : nullptr}; }
};

template <class Form>
struct RowsTask {
  using R = Rows<Form>;
  static constexpr int kM = R::kM, kK = R::kK;
  static constexpr int kLongRowBytes = 256;  // of a long row's inputs that a thread keeps

  static ARK_DEVICE void consume(Consumer& consumer, const Task& task) {
    if constexpr (R::kDtype == abi::kTypeBF16)
      consume_halves<MmaType::kBF16, bf16>(consumer, task);
    else if constexpr (R::kDtype == abi::kTypeF16)
      consume_halves<MmaType::kF16, f16>(consumer, task);
    else
      consume_floats(consumer, task);
  }

 private:
  /// The activation's elements [begin, end) of every row, at `to` [m][end - begin].
  template <class S>
  static ARK_DEVICE void stage(Consumer& consumer, const Task& task, S* to, int begin, int end,
                               unsigned char* reduction) {
    using P = typename Form::Prologue;
    // fp32 weights have rows of whole 16 bytes, four elements; the activation may be made of narrower ones
    constexpr int V = kK % P::kVector == 0 ? P::kVector : 4, kPerThread = P::kCachedChunks * V;
    static_assert(kK % V == 0);
    constexpr bool kCached = kK <= kPerThread * kConsumerThreads;
    constexpr int kSize = kCached && kM >= 8 && kK <= kPerThread * 32    ? 32
                          : kCached && kM >= 2 && kK <= kPerThread * 128 ? 128
                                                                         : kConsumerThreads;
    // A long row's inputs are asked for at once where registers suffice and all are plain loads: fragments are made
    // later. A row of 14336 elements in two windows, each a walk over the whole row, four vectors at a time, took 7 us.
    constexpr int kChunks = (kK + V * kConsumerThreads - 1) / (V * kConsumerThreads);
    constexpr bool kAtOnce = R::kStreams && kM == 1 && kWhole && P::kCachedChunks > 1 &&
                             kChunks * sizeof(typename P::template Inputs<V>) <= kLongRowBytes;
    constexpr int kKept = kCached ? P::kCachedChunks : kAtOnce ? kChunks : 0;
    constexpr bool kPart = P::kPasses == 1;  // else every window's walk is over the whole row
    static_assert(!kPart || decltype(P::accumulator(Pass<0>{}))::kEmpty, "a reduction has a pass of its own");
    const ProgramContext c(task, R::kPrologueOperand, consumer.worker, Form::kVectorOperands >> R::kPrologueOperand);
    const RowGroup group{consumer, kSize};
    RowWalk<P, V, kKept> walk{c, group, kPart ? begin : 0, kPart ? end : kK};
#pragma unroll 1
    for (int m = kSize == kConsumerThreads ? 0 : group.index(), rows = R::rows(task); m < rows;
         m += kConsumerThreads / kSize) {
      i32 row[P::kDims] = {};
      row[P::kDims - 2] = m;
      typename P::Uniform u{};
      walk.load(row);
      if constexpr (Form::kEarlyPrologue) {
        // the waits are for the epilogue: their latency passes while the words come; the stage ends with a barrier
        if (consumer.warp() == kPollWarp && (kWhole || begin == 0)) consumer.wait_for_item_alone(task);
      }
      if constexpr (P::kFlagged && kKept > 0) walk.wait_until_ready(row);
      walk.template run<0>(row, u, reduction, ActivationSink<S>{to + m * (end - begin), begin, end});
    }
  }

  // ---------------------------------------------------------------- 16-bit types: tensor cores

  // Behind the activation: a prologue's reduction.
  static constexpr int kActivationBytes = kScratchBytes - (Form::Prologue::kPasses > 1 ? 512 : 0);
  static constexpr int kWindow =
      kK * 2 <= kActivationBytes ? kK : kActivationBytes / 2 / 512 * 512;  // elements staged at once
  static constexpr bool kWhole = kWindow == kK;
  static constexpr int kStagedBytes = ((kK - (kK - 1) / kWindow * kWindow) * 2 + 15) / 16 * 16;  // of the last

  template <MmaType kType, class S>
  static ARK_DEVICE void consume_halves(Consumer& consumer, const Task& task) {
    if constexpr (kM > 1)
      StripsTask<Form, kType, S>::consume(consumer, task);
    else if constexpr (R::kColumns != 0)
      consume_columns<kType, S>(consumer, task);
    else
      consume_one<kType, S>(consumer, task);
  }

  template <MmaType kType, class S>
  static ARK_DEVICE void consume_one(Consumer& consumer, const Task& task) {
    OneRow<kType> row(consumer);
    if constexpr (kWhole) {
      stage_whole<S>(consumer, task);
    } else {  // in windows that fit the scratch memory
      if constexpr (!Form::kEarlyPrologue) consumer.wait_for_item(task);
      consumer.stamp(1);
#pragma unroll 1
      for (int begin = 0; begin < kK; begin += kWindow) {
        const int end = min(kK, begin + kWindow);
        if (begin > 0) consumer.sync();
        stage<S>(consumer, task, reinterpret_cast<S*>(consumer.scratch()), begin, end, reduction(consumer));
        consumer.stamp(2);
        consumer.sync();
        OneRow<kType>::Pages::template load_fragments<false>(row.b, consumer.scratch(), begin, end, row.at);
      }
    }
    const Extent extent = extent_of(task);
    row.multiply(consumer, extent, [&] { prefetch_epilogues(consumer, task); });
    arrive(consumer, task, finish_pages<kType>(consumer, task, row.sums));
  }

  static ARK_DEVICE unsigned char* reduction(const Consumer& consumer) {  // 8 accumulators of a prologue
    return consumer.scratch() + kActivationBytes;
  }

 public:
  // ---- the parts of consume() for one row whose activation fits the scratch memory, which forms share (RowsGroup)

  struct Extent {
    int pages = 0, slots = 0;  // of all segments together, as every page has as many slots
  };
  static ARK_DEVICE Extent extent_of(const Task& task) {
    Extent extent;
    for_each_segment<Form>(task, [&](auto, const auto& range, int page, int slot) __attribute__((always_inline)) {
      extent = {page + R::pages(range.count), slot + R::slots(range.count)};
    });
    return extent;
  }

  /// `done` units of this warp.
  static ARK_DEVICE void arrive(Consumer& consumer, const Task& task, int done) {
    if constexpr (!hands_on_words<Form>()) consumer.arrive_warp(task, done);
  }

  /// The activation, unless it is there after another item of this op and what this one waits for has been waited for.
  template <class S>
  static ARK_DEVICE void stage_whole(Consumer& consumer, const Task& task) {
    static_assert(kWhole);
    if (consumer.staged == consumer.op && task.slot->waits_alike) return;
    if constexpr (!Form::kEarlyPrologue) consumer.wait_for_item(task);
    consumer.stamp(1);
    stage<S>(consumer, task, reinterpret_cast<S*>(consumer.scratch()), 0, kK, reduction(consumer));
    consumer.stamp(2);
    consumer.sync();
  }

  /// From the staged activation to the sums of the weight rows.
  template <MmaType kType>
  struct OneRow {
    using Pages = RowsPages<Form, kType>;
    RowsPlace at;
    typename Pages::Fragments b = {};
    float* sums = nullptr;

    ARK_DEVICE explicit OneRow(const Consumer& consumer) : at(consumer.thread()) {}

    template <class Prefetch>
    ARK_DEVICE void multiply(Consumer& consumer, const Extent& extent, const Prefetch& prefetch) {
      unsigned char* scratch = consumer.scratch();
      if constexpr (kWhole) Pages::template load_fragments<kWhole>(b, scratch, 0, kK, at);
      // the sums lie behind the activation if there is room, else over it
      static_assert((abi::kMaxRowsPerItem * R::kChunks + R::kRowsPerPage) * Pages::kSlotWords * 4 <= kScratchBytes);
      sums = reinterpret_cast<float*>(scratch + kStagedBytes);
      const bool behind = kStagedBytes + extent.slots * Pages::kSlotWords * 4 <= kActivationBytes;
      if (!behind) {
        consumer.sync();
        sums = reinterpret_cast<float*>(scratch);
      }
      consumer.staged = behind && kWhole ? consumer.op : -1;
      if constexpr (kTrace) consumer.wait_end = global_time_ns();  // the activation is there
      consumer.stamp(3);
      prefetch();
      Pages::run(consumer, b, sums, consumer.page, extent.pages, at);
      consumer.advance(extent.pages);
      consumer.stamp(7);
      consumer.sync();
      consumer.mark_loaded();
      consumer.stamp(8);
    }
  };

  /// The epilogues, one thread per element: how many units this warp has finished.
  template <MmaType kType>
  static ARK_DEVICE int finish_pages(Consumer& consumer, const Task& task, const float* sums) {
    using Pages = RowsPages<Form, kType>;
    int done = 0;
    for_each_segment<Form>(task, [&](auto segment, const auto& range, int, int slot) __attribute__((always_inline)) {
      if (range.count > 0)
        done += finish<decltype(segment)>(consumer, task, range.first, range.count,
                                          [&](int unit, int unit_lane, int) __attribute__((always_inline)) {
                                            return Pages::total(sums, slot + R::slot_of(unit, unit_lane));
                                          });
    });
    return done;
  }

  /// What the epilogues read comes into the first-level cache while the pages arrive: the loads are issued and never
  /// waited for.
  static ARK_DEVICE void prefetch_epilogues(Consumer& consumer, const Task& task) {
    for_each_segment<Form>(task, [&](auto segment, const auto& range, int, int) __attribute__((always_inline)) {
      using G = decltype(segment);
      using P = typename G::Program;
      const int e = consumer.thread(), lane = e & (R::kLanes - 1), unit = e >> (R::kLanes - 1);
      if (unit >= range.count) return;
      const ProgramContext c(task, G::kFirstOperand, consumer.worker);
      i32 x[P::kDims] = {};
      x[P::kDims - 1] = G::column(range.first + unit, lane);
      typename P::template Inputs<1> in;
      P::template load<1>(c, x, in);
    });
  }

 private:
  /// One row, weights [k][n]: the activation stays in shared memory, the item's sums lie behind it.
  template <MmaType kType, class S>
  static ARK_DEVICE void consume_columns(Consumer& consumer, const Task& task) {
    using Product = ColumnsOfRow<Form, kType>;
    unsigned char* scratch = consumer.scratch();
    float* sums = reinterpret_cast<float*>(scratch + Product::kActivationBytes);
    static_assert(Product::kActivationBytes + Product::kSumBytes <= kActivationBytes);
    if (consumer.staged != consumer.op || !task.slot->waits_alike) {
      if constexpr (!Form::kEarlyPrologue) consumer.wait_for_item(task);
      consumer.stamp(1);
      stage<S>(consumer, task, reinterpret_cast<S*>(scratch), 0, kK, scratch + kActivationBytes);
      Product::clear_end(consumer, scratch);
      consumer.stamp(2);
      consumer.sync();
    }
    consumer.staged = consumer.op;
    if constexpr (kTrace) consumer.wait_end = global_time_ns();  // the activation is there
    consumer.stamp(3);
    prefetch_epilogues(consumer, task);

    PageReader pages(consumer);
    int strips = 0;
    for_each_segment<Form>(task, [&](auto, const auto& range, int, int) __attribute__((always_inline)) {
#pragma unroll 1
      for (int unit = 0; unit < range.count; unit += R::kColumns, ++strips)
#pragma unroll 1
        for (int lane = 0; lane < R::kLanes; ++lane)
          Product::run(consumer, pages, scratch, sums + (strips * R::kLanes + lane) * R::kColumns);
    });
    consumer.advance(strips * Product::kPagesOfStrip);
    consumer.stamp(7);
    consumer.sync();
    consumer.mark_loaded();
    consumer.stamp(8);

    int done = 0, first = 0;
    for_each_segment<Form>(task, [&](auto segment, const auto& range, int, int) __attribute__((always_inline)) {
      if (range.count > 0)
        done += finish<decltype(segment)>(consumer, task, range.first, range.count,
                                          [&](int unit, int lane, int) __attribute__((always_inline)) {
                                            return Product::total(sums, first + Product::row_of(unit, lane));
                                          });
      first += (range.count + R::kColumns - 1) / R::kColumns * R::kColumns * R::kLanes;
    });
    arrive(consumer, task, done);
  }

  /// Epilogue of one segment's units: thread = (activation row, unit, lane of the unit), lanes of a unit side by side.
  /// With one activation row: how many units this warp has finished.
  template <class G, class Total>
  static ARK_DEVICE int finish(Consumer& consumer, const Task& task, int first_unit, int count, const Total& total_of) {
    using P = typename G::Program;
    const int per_row = count * R::kLanes, elements = per_row * R::rows(task);
    const int thread = consumer.thread(), warp_lane = thread & 31;
    const ProgramContext c(task, G::kFirstOperand, consumer.worker);
    int done = 0;
#pragma unroll 1
    for (int first = thread & ~31; first < elements; first += kConsumerThreads) {
      const int e = min(first + warp_lane, elements - 1);
      const int m = kM == 1 ? 0 : e / per_row, in_row = e - m * per_row;
      const int lane = in_row & (R::kLanes - 1), unit = in_row >> (R::kLanes - 1);
      UnitRoots roots{total_of(unit, lane, m), 0, R::kGated};
      if constexpr (R::kLanes == 2) roots.other = __shfl_xor_sync(~0u, roots.own, 1);
      done += min(32, elements - first) / R::kLanes;
      if (first + warp_lane >= elements || (R::kGated && lane == 1)) continue;
      i32 x[P::kDims] = {};
      x[P::kDims - 2] = m;
      x[P::kDims - 1] = G::column(first_unit + unit, lane);
      P::template run<1>(c, x, roots);
    }
    return done;
  }

  // ---------------------------------------------------------------- fp32: CUDA cores

  /// A warp takes a weight row; the activation comes from shared memory, window by window.
  static ARK_DEVICE void consume_floats(Consumer& consumer, const Task& task) {
    constexpr int kSumBytes = abi::kMaxRowsPerItem * 8 * 4, kFloatBytes = kScratchBytes - kSumBytes - 512;
    float* sums = reinterpret_cast<float*>(consumer.scratch());  // [row of the item][8]
    float* activation = reinterpret_cast<float*>(consumer.scratch() + kSumBytes);
    unsigned char* reduction = consumer.scratch() + kScratchBytes - 512;
    constexpr int kFloats = kFloatBytes / 4 / kM / 8 * 8, kFloatWindow = kK < kFloats ? kK : kFloats;
    consumer.wait_for_item(task);
    consumer.staged = -1;
#pragma unroll 1
    for (int begin = 0; begin < kK; begin += kFloatWindow) {
      const int end = min(kK, begin + kFloatWindow);
      consumer.sync();
      stage<float>(consumer, task, activation, begin, end, reduction);
      consumer.sync();
      int row = 0;
      for_each_segment<Form>(task, [&](auto segment, const auto& range, int, int) __attribute__((always_inline)) {
        using G = decltype(segment);
#pragma unroll 1
        for (int r = consumer.warp(); r < range.count * R::kLanes; r += kConsumerWarps)
          multiply_floats<G>(consumer, task, range.first + r / R::kLanes, r % R::kLanes, activation, begin, end,
                             sums + (row + r) * 8);
        row += range.count * R::kLanes;
      });
    }
    consumer.sync();
    consumer.mark_loaded();
    int row = 0;
    for_each_segment<Form>(task, [&](auto segment, const auto& range, int, int) __attribute__((always_inline)) {
      if (range.count > 0)
        finish<decltype(segment)>(consumer, task, range.first, range.count,
                                  [&](int unit, int unit_lane, int m) __attribute__((always_inline)) {
                                    return sums[(row + unit * R::kLanes + unit_lane) * 8 + m];
                                  });
      row += range.count * R::kLanes;
    });
  }

  /// One weight row's elements [begin, end) times all activation rows, added to sums[0..m).
  template <class G>
  static ARK_DEVICE void multiply_floats(Consumer& consumer, const Task& task, int unit, int lane,
                                         const float* activation, int begin, int end, float* sums) {
    const int operand = R::kGated && lane == 1 ? G::kWeight2 : G::kWeight;
    const float* weight =
        task.address<float>(operand) + G::column(unit, lane) * task.operand(operand).stride[0] + begin;
    const int length = end - begin, rows = R::rows(task);
    float acc[8] = {};
#pragma unroll 4
    for (int e = consumer.lane() * 4; e < length; e += 128) {
      Vec<float, 4> w;
      load_vector(weight + e, w);
#pragma unroll
      for (int m = 0; m < 8; ++m)
        if (m < rows) {
          const float4 x = *reinterpret_cast<const float4*>(activation + m * length + e);
          acc[m] = ::fmaf(w.v[0], x.x, ::fmaf(w.v[1], x.y, ::fmaf(w.v[2], x.z, ::fmaf(w.v[3], x.w, acc[m]))));
        }
    }
    const float sum = transpose_sum<8>(acc, consumer.lane());
    if (consumer.lane() % 4 == 0 && consumer.lane() / 4 < rows) {
      float* to = sums + consumer.lane() / 4;
      *to = begin == 0 ? sum : *to + sum;
    }
  }
};

/// Forms of one row of 16 bits that differ in prologue, epilogues and how weight rows make units: what is between them
/// stands in the kernel once. A layer's products are such forms, and what a layer executes is more code than the
/// instruction caches hold.
template <class First, class... Others>
struct RowsGroup {
  static ARK_DEVICE void consume(Consumer& consumer, const Task& task) {
    if constexpr (Rows<First>::kDtype == abi::kTypeBF16)
      consume_halves<MmaType::kBF16, bf16>(consumer, task);
    else
      consume_halves<MmaType::kF16, f16>(consumer, task);
  }

 private:
  template <class Form>
  static constexpr bool kAlike =
      Rows<Form>::kM == 1 && Rows<Form>::kColumns == 0 && Rows<Form>::kK == Rows<First>::kK &&
      Rows<Form>::kDtype == Rows<First>::kDtype && Rows<Form>::kRowsPerPage == Rows<First>::kRowsPerPage;
  static_assert(Rows<First>::kM == 1 && Rows<First>::kColumns == 0 && (kAlike<Others> && ...));

  /// f(RowsTask<Form>{}) of the record's form.
  template <class F>
  static ARK_DEVICE void of_form(const Task& task, const F& f) {
    const int form = task.record->params.rows.form;
    const bool found = ((form == Rows<Others>::kForm ? (f(RowsTask<Others>{}), true) : false) || ...);
    if (!found) f(RowsTask<First>{});
  }

  template <MmaType kType, class S>
  static ARK_DEVICE void consume_halves(Consumer& consumer, const Task& task) {
    typename RowsTask<First>::Extent extent;
    of_form(task, [&](auto rows) __attribute__((always_inline)) {
      using Own = decltype(rows);
      Own::template stage_whole<S>(consumer, task);
      const auto own = Own::extent_of(task);
      extent = {own.pages, own.slots};
      Own::prefetch_epilogues(consumer, task);
    });
    typename RowsTask<First>::template OneRow<kType> row(consumer);
    row.multiply(consumer, extent, [] {});
    of_form(task, [&](auto rows) __attribute__((always_inline)) {
      using Own = decltype(rows);
      Own::arrive(consumer, task, Own::template finish_pages<kType>(consumer, task, row.sums));
    });
  }
};

/// The loaders; consumers call RowsTask of the record's form.
template <class Programs>
struct MatmulRows {
  static ARK_DEVICE void load_immutable(Loader& loader, const Task& task) {
    RowsLoader::load<Programs>(loader, task, !kDependentPages || task.record->params.rows.weights_immutable != 0);
  }
  static ARK_DEVICE void load_dependent(Loader& loader, const Task& task) {
    if constexpr (kDependentPages) {
      const bool fills = task.record->params.rows.weights_immutable == 0;
      if (fills) loader.wait_for(task, task.first, task.count);
      RowsLoader::load<Programs>(loader, task, fills);
    }
    prefetch_operands(loader, task);
  }

 private:
  /// What the prologue reads comes closer (L2) while the worker still waits: norm weights are cold.
  static ARK_DEVICE void prefetch_operands(Loader& loader, const Task& task) {
    const abi::MatmulRowsParams& p = task.record->params.rows;
#pragma unroll 1
    for (int i = p.prologue_operand; i < p.segment[0].first_operand; ++i) {
      const abi::Operand& o = task.operand(i);
      if (o.slot == abi::kNoSlot || o.index_operand >= 0 || o.vector < 4) continue;
      const int bytes = p.k * element_bytes(o.dtype);
#pragma unroll 1
      for (int at = loader.lane() * 128; at < bytes; at += 32 * 128) prefetch_l2(task.address<unsigned char>(i) + at);
    }
  }
};

}  // namespace ark::device
