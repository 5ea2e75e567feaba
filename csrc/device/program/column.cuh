// kColumn: the first dimensions of the domain are reduced, the others kept. Tile = (split of the reduced range, block
// of `tile` kept columns). Threads form lanes of V columns and groups that take the reduced elements in turn; the
// groups' sums meet in shared memory in a fixed order. Rows off alignment have slots (column_slots.cuh). With several
// splits, the stores get coordinate x[0] = split (the other reduced coordinates 0), so that stride[0] of a stored
// operand is the distance of partial results. Each way is a copy of the program's loop: P::kColumnWays says which there
// are.
#pragma once
#include "device/abi/column_ways.h"
#include "device/program/column_folded.cuh"
#include "device/program/column_slots.cuh"
#include "device/program/support.cuh"

namespace ark::device {

template <class Programs>
struct Column {
  static ARK_DEVICE void consume(Consumer& consumer, const Task& task) {
    consumer.wait_for_item(task);
    Programs::column(task.record->params.program.program, [&](auto program) __attribute__((always_inline)) {
      using P = decltype(program);
      using A = decltype(P::accumulator(Pass<0>{}));
      // all accumulators of the consumers must fit the scratch memory
      constexpr bool kFits = static_cast<int>(sizeof(A)) * P::kVector * kConsumerThreads <= kScratchBytes;
      constexpr int V = kFits ? P::kVector : 1;
      static_assert(static_cast<int>(sizeof(A)) * kConsumerThreads <= kScratchBytes,
                    "too many reductions in a column program");
#pragma unroll 1
      for (int t = task.first; t < task.first + task.count; ++t) run_tile<P, V>(consumer, task, t);
    });
  }

 private:
  struct Range {
    i64 begin, end;
  };
  /// Where loads ask how to be done: fewer copies of more code.
  template <class P>
  static constexpr int kFewInFlight = P::kUnroll < 4 ? P::kUnroll : 4;

  template <class P>
  static ARK_DEVICE constexpr bool has(u32 ways) {
    return (P::kColumnWays & ways) != 0;
  }
  template <class P>
  static ARK_DEVICE constexpr bool has_only(u32 ways) {
    return (P::kColumnWays & ~ways) == 0;
  }

  /// Whole vectors, then the columns that are left of a row whose length is no multiple of V; or slots of each row.
  template <class P, int V>
  static ARK_DEVICE void run_tile(Consumer& consumer, const Task& task, int tile) {
    const abi::OpRecord& r = *task.record;
    const abi::ProgramParams& p = r.params.program;
    const i64 blocks = (p.num_rows + p.tile - 1) / p.tile;
    const i64 split = tile / blocks, first = tile % blocks * p.tile;
    const Range columns{first, min(first + p.tile, p.num_rows)};
    i64 whole = columns.begin;
    if constexpr (V > 1) {
      const i64 row = r.size[P::kDims - 1];
      const bool divides = p.tile % V == 0 && (row % V == 0 || row == p.num_rows);
      if constexpr (P::kFolds && kColumnsWalk<P> && has<P>(abi::kColumnFolded)) {
        // all threads take one row's run after another: worth it for a single one, or where each fills them
        const bool few = columns.end - columns.begin == row,
                   full = min(p.split, p.row_size) * row >= 4 * V * kConsumerThreads;
        if (has_only<P>(abi::kColumnFolded) || (row < 4 * V && (few || full) && columns.begin % row == 0 &&
                                                columns.end % row == 0 && folds<P, V>(consumer, task, split, columns)))
          return fold_rows<P, V>(consumer, task, split, columns);
      }
      if constexpr (P::kPlain && P::kVectorLoads != 0 && has<P>(abi::kColumnSlots | abi::kColumnSlotsAsking)) {
        if (row >= 4 * V && !(divides && all_vectors<V>(task, p.first_operand, P::kNumOperands))) {
          const ColumnHead<P, V> head(ProgramContext(task, p.first_operand, consumer.worker));
          if (head.operand >= 0 && !(divides && head.aligned))
            return run_rows<P, V>(consumer, task, split, columns, head);
        }
      }
      if constexpr (has<P>(abi::kColumnWhole | abi::kColumnAsking)) {
        if (divides) {
          whole = columns.end - columns.end % V;
          run_columns<P, V>(consumer, task, split, {columns.begin, whole});
        }
      }
    }
    if constexpr (V == 1 || has<P>(abi::kColumnSingle)) run_columns<P, 1>(consumer, task, split, {whole, columns.end});
  }

  template <class P, int V>
  static ARK_DEVICE void run_columns(Consumer& consumer, const Task& task, i64 split, const Range& range) {
    using A = decltype(P::accumulator(Pass<0>{}));
    const abi::OpRecord& r = *task.record;
    const int operands = r.params.program.first_operand;
    const ProgramContext c(task, operands, consumer.worker), known(task, operands, consumer.worker, ~0u);
    constexpr bool kWhole = V > 1 && has<P>(abi::kColumnWhole), kAsks = V == 1 || has<P>(abi::kColumnAsking);
    const bool vectors = kWhole && (!kAsks || all_vectors<V>(task, operands, P::kNumOperands));
    // more columns than threads: several rounds
    const i64 columns = range.end - range.begin;
    const int lanes = static_cast<int>(min((columns + V - 1) / V, static_cast<i64>(kConsumerThreads)));
    const int groups = kConsumerThreads / max(lanes, 1);
    const int lane = consumer.thread() % max(lanes, 1), group = consumer.thread() / max(lanes, 1);
    A* sums = reinterpret_cast<A*>(consumer.scratch());  // [group][lanes * V]
#pragma unroll 1
    for (i64 start = 0; start < columns; start += lanes * V) {
      const i64 column = start + lane * V;
      if (group < groups && column < columns) {
        A acc[V];
        ARK_EACH acc[i].start();  // on every path: see support.cuh
        i32 x[P::kDims] = {};
        unflatten<P::kReduceDims, P::kDims>(r, range.begin + column, x);
        // single elements: more of them; loads that ask how to be done: fewer copies of more code
        constexpr int kWanted = V == 1 ? P::kUnroll * P::kVector : P::kUnroll, kMost = V == 1 ? 8 : 4;
        constexpr int kAsking = kWanted < kMost ? kWanted : kMost;
        bool done = false;
        if constexpr (kWhole) done = vectors && sum_aligned<P, V>(known, 0, V, r, split, x, group, groups, acc);
        if constexpr (kAsks)
          if (!done) sum_rows<P, V, kAsking>(c, r, split, x, group, groups, acc);
        ARK_EACH sums[group * lanes * V + lane * V + i] = acc[i];
      }
      const i64 count = min(columns - start, static_cast<i64>(lanes) * V);
      merge_groups<P>(consumer, c, split, {range.begin + start, range.begin + start + count}, sums, lanes * V, groups);
    }
  }

  /// The run of what is reduced for a whole row of few columns.
  template <class P, int V>
  static ARK_DEVICE ColumnFold<P, V> fold_of(const ProgramContext& c, i64 split, i64 begin) {
    const abi::OpRecord& r = *c.task.record;
    const abi::ProgramParams& p = r.params.program;
    i32 x[P::kDims] = {};
    unflatten<P::kReduceDims, P::kDims>(r, begin, x);
    return ColumnFold<P, V>(c, x, split * p.split, min(p.row_size, (split + 1) * p.split));
  }
  template <class P, int V>
  static ARK_DEVICE bool folds(Consumer& consumer, const Task& task, i64 split, const Range& range) {
    const ProgramContext c(task, task.record->params.program.first_operand, consumer.worker);
    bool all = true;
#pragma unroll 1
    for (i64 begin = range.begin; all && begin < range.end; begin += task.record->size[P::kDims - 1])
      all = fold_of<P, V>(c, split, begin).exists;
    return all;
  }
  template <class P, int V>
  static ARK_DEVICE void fold_rows(Consumer& consumer, const Task& task, i64 split, const Range& range) {
    using A = decltype(P::accumulator(Pass<0>{}));
    const abi::OpRecord& r = *task.record;
    const ProgramContext c(task, r.params.program.first_operand, consumer.worker);
#pragma unroll 1
    for (i64 begin = range.begin; begin < range.end; begin += r.size[P::kDims - 1])
      fold_of<P, V>(c, split, begin)
          .run(consumer, r, reinterpret_cast<A*>(consumer.scratch()),
               [&](int column, const A& total) { finish<P>(c, r, split, begin + column, total); });
  }

  /// Columns of several rows, two of them side by side.
  template <class P, int V>
  static ARK_DEVICE void run_rows(Consumer& consumer, const Task& task, i64 split, const Range& range,
                                  const ColumnHead<P, V>& head) {
    const i64 row = task.record->size[P::kDims - 1];
#pragma unroll 1
    for (i64 begin = range.begin; begin < range.end;) {
      const i64 border = (begin / row + 1) * row, end = min(range.end, border + row);
      run_slots<P, V>(consumer, task, split, {begin, end}, border, head);
      begin = end;
    }
  }

  /// Columns of one row, or of two, the second of which begins at `border`.
  template <class P, int V>
  static ARK_DEVICE void run_slots(Consumer& consumer, const Task& task, i64 split, const Range& range, i64 border,
                                   const ColumnHead<P, V>& head) {
    using A = decltype(P::accumulator(Pass<0>{}));
    constexpr int kAsking = kFewInFlight<P>;
    constexpr bool kAsks = has<P>(abi::kColumnSlotsAsking);
    const abi::OpRecord& r = *task.record;
    const ProgramContext c(task, r.params.program.first_operand, consumer.worker);
    const int columns = static_cast<int>(range.end - range.begin);
    const int runs = border < range.end ? 2 : 1;
    const abi::ColumnSlots s = abi::column_slots(columns, runs, V, head.period, kConsumerThreads);
    const int lane = consumer.thread() % s.lanes, group = consumer.thread() / s.lanes;
    A* sums = reinterpret_cast<A*>(consumer.scratch());  // [group][s.columns]
#pragma unroll 1
    for (int start = 0; start < columns; start += s.columns) {
      const int count = min(columns - start, s.columns);
      // the columns of a round that are the first row's, and the run that is this thread's
      const int cut = static_cast<int>(max(min(border - range.begin - start, static_cast<i64>(count)), 0ll));
      const int slots = abi::slots_of(cut, V);
      const bool second = lane >= slots;
      const int from = second ? cut : 0, to = second ? count : cut;
      i32 x[P::kDims] = {};
      unflatten<P::kReduceDims, P::kDims>(r, min(range.begin + start + from, range.end - 1), x);
      unflatten<0, P::kReduceDims>(r, split * r.params.program.split + group, x);
      const int before = (second ? lane - slots : lane) * V - head.phase(c, x);  // from the run's begin to the slot
      const int at = from + before, low = max(0, -before), high = min(V, to - at);
      if (group < s.groups && low < high) {
        A acc[V];
        ARK_EACH acc[i].start();  // on every path: see support.cuh
        x[P::kDims - 1] += before;
        bool done = false;
        if constexpr (has<P>(abi::kColumnSlots))
          done =
              (!kAsks || head.all_together()) && sum_aligned<P, V>(ColumnSlotContext<true>(c, head.together, low, high),
                                                                   low, high, r, split, x, group, s.groups, acc);
        if constexpr (kAsks)
          if (!done)
            sum_rows<P, V, kAsking>(ColumnSlotContext<false>(c, head.together, low, high), r, split, x, group, s.groups,
                                    acc);
        ARK_EACH if (i >= low && i < high) sums[group * s.columns + at + i] = acc[i];
      }
      merge_groups<P>(consumer, c, split, {range.begin + start, range.begin + start + count}, sums, s.columns,
                      s.groups);
    }
  }

  /// Adds the groups' sums (`width` of each) in order, and stores those of the columns.
  template <class P, class A>
  static ARK_DEVICE void merge_groups(Consumer& consumer, const ProgramContext& c, i64 split, const Range& columns,
                                      const A* sums, int width, int groups) {
    const int count = static_cast<int>(columns.end - columns.begin);
    consumer.sync();
#pragma unroll 1
    for (int k = consumer.thread(); k < count; k += kConsumerThreads) {
      A total = sums[k];
#pragma unroll 4
      for (int g = 1; g < groups; ++g) total.merge(sums[g * width + k]);
      finish<P>(c, *c.task.record, split, columns.begin + k, total);
    }
    consumer.sync();  // before the sums are overwritten
  }

  /// Stores the results of a kept element.
  template <class P, class A>
  static ARK_DEVICE void finish(const ProgramContext& c, const abi::OpRecord& r, i64 split, i64 column,
                                const A& total) {
    typename P::Uniform u{};
    P::finish(total, u);
    i32 x[P::kDims] = {};
    unflatten<P::kReduceDims, P::kDims>(r, column, x);
    x[0] = split;
    if constexpr (P::kUniformStores) P::uniform_stores(c, x, u);
  }

  /// The reduced elements `group`, group + groups, ... of the split, for the V columns at the kept coordinates of x;
  /// kDepth vectors in flight.
  template <class P, int V, int kDepth, class Context, class A>
  static ARK_DEVICE void sum_rows(const Context& c, const abi::OpRecord& r, i64 split, i32 (&x)[P::kDims], int group,
                                  int groups, A (&acc)[V]) {
    using Rows = ColumnRows<P, V, kDepth>;
    using Place = typename Rows::Place;
    const abi::ProgramParams& p = r.params.program;
    const i64 first = split * p.split, last = min(p.row_size, first + p.split);
    const Rows rows{r, static_cast<Place>(last), static_cast<Place>(groups)};
    rows.run(c, static_cast<Place>(first) + group, x, acc);
  }
  /// The same where all vectors are aligned, `low` to `high` the columns of one that count; false: distances are too
  /// long.
  template <class P, int V, class Context, class A>
  static ARK_DEVICE bool sum_aligned(const Context& c, int low, int high, const abi::OpRecord& r, i64 split,
                                     i32 (&x)[P::kDims], int group, int groups, A (&acc)[V]) {
    if constexpr (V > 1 && kColumnsWalk<P>) {
      const ColumnWalk<P> walk(c, x, low, high);
      if (walk.fits) sum_rows<P, V, P::kUnroll>(walk, r, split, x, group, groups, acc);
      return walk.fits;
    } else {
      sum_rows<P, V, P::kUnroll>(c, r, split, x, group, groups, acc);
      return true;
    }
  }
};

}  // namespace ark::device
