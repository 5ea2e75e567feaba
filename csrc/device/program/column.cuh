// kColumn: the first dimensions of the domain are reduced, the others kept. Tile = (split of the reduced range, block
// of `tile` kept columns). Threads form lanes of V columns and groups that take the reduced elements in turn; the
// groups' sums meet in shared memory in a fixed order. With several splits, the stores get coordinate x[0] = split (the
// other reduced coordinates 0), so that stride[0] of a stored operand is the distance of partial results.
#pragma once
#include "device/program/support.cuh"

namespace ark::device {

template <class Programs>
struct Column {
  static ARK_DEVICE void load_immutable(Loader&, const Task&) {}
  static ARK_DEVICE void load_dependent(Loader&, const Task&) {}

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

  /// Whole vectors, then the columns that are left of a row whose length is no multiple of V.
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
      if (p.tile % V == 0 && (row % V == 0 || row == p.num_rows)) {
        whole = columns.end - columns.end % V;
        run_columns<P, V>(consumer, task, split, {columns.begin, whole});
      }
    }
    run_columns<P, 1>(consumer, task, split, {whole, columns.end});
  }

  template <class P, int V>
  static ARK_DEVICE void run_columns(Consumer& consumer, const Task& task, i64 split, const Range& range) {
    using A = decltype(P::accumulator(Pass<0>{}));
    constexpr int kReduce = P::kReduceDims;
    const abi::OpRecord& r = *task.record;
    const int operands = r.params.program.first_operand;
    const ProgramContext c(task, operands, consumer.worker), known(task, operands, consumer.worker, ~0u);
    const bool vectors = V > 1 && all_vectors<V>(task, operands, P::kNumOperands);
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
        // single elements: more of them; loads that ask how to be done: fewer copies of more code
        constexpr int kWanted = V == 1 ? P::kUnroll * P::kVector : P::kUnroll, kMost = V == 1 ? 8 : 4;
        constexpr int kAsking = kWanted < kMost ? kWanted : kMost;
        if (vectors)
          sum_rows<P, V, P::kUnroll>(known, r, split, range.begin + column, group, groups, acc);
        else
          sum_rows<P, V, kAsking>(c, r, split, range.begin + column, group, groups, acc);
        ARK_EACH sums[group * lanes * V + lane * V + i] = acc[i];
      }
      consumer.sync();
#pragma unroll 1
      for (int k = consumer.thread(); k < lanes * V; k += kConsumerThreads) {
        if (start + k >= columns) continue;
        A total = sums[k];
#pragma unroll 4
        for (int g = 1; g < groups; ++g) total.merge(sums[g * lanes * V + k]);
        typename P::Uniform u{};
        P::finish(total, u);
        i32 x[P::kDims] = {};
        unflatten<kReduce, P::kDims>(r, range.begin + start + k, x);
        x[0] = split;
        if constexpr (P::kUniformStores) P::uniform_stores(c, x, u);
      }
      consumer.sync();  // before the sums are overwritten
    }
  }

  /// The reduced elements `group`, group + groups, ... of the split, for V columns; kDepth vectors in flight.
  template <class P, int V, int kDepth, class A>
  static ARK_DEVICE void sum_rows(const ProgramContext& c, const abi::OpRecord& r, i64 split, i64 column, int group,
                                  int groups, A (&acc)[V]) {
    constexpr int kReduce = P::kReduceDims;
    const abi::ProgramParams& p = r.params.program;
    const i64 first = split * p.split, last = min(p.row_size, first + p.split);
    i32 x[P::kDims] = {};
    unflatten<kReduce, P::kDims>(r, column, x);
    ARK_EACH acc[i].start();
    const typename P::Uniform u{};
#pragma unroll 1
    for (i64 e = first + group; e < last; e += kDepth * groups) {
      typename P::template Inputs<V> in[kDepth];
      unrolled<kDepth>([&](auto k) __attribute__((always_inline)) {
        if (e + k.value * groups < last) {
          unflatten<0, kReduce>(r, e + k.value * groups, x);
          P::template load<V>(c, x, in[k.value]);
        }
      });
      unrolled<kDepth>([&](auto k) __attribute__((always_inline)) {
        if (e + k.value * groups < last) {
          unflatten<0, kReduce>(r, e + k.value * groups, x);
          P::template element<V>(Pass<0>{}, c, x, e + k.value * groups, in[k.value], u, acc, NoSink{});
        }
      });
    }
  }
};

}  // namespace ark::device
