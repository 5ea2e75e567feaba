// kColumn: the first dimensions of the domain are reduced, the others kept. Tile = (split of the reduced range, block
// of `tile` kept columns). Threads form lanes of V columns and groups that take the reduced elements in turn; the
// groups' sums meet in shared memory in a fixed order. With several splits, the stores get coordinate x[0] = split (the
// other reduced coordinates 0), so that stride[0] of a stored operand is the distance of partial results.
#pragma once
#include "device/program_support.cuh"

namespace ark::device {

template <class Programs>
struct Column {
  static ARK_DEVICE void load_immutable(Loader&, const Task&) {}
  static ARK_DEVICE void load_dependent(Loader&, const Task&) {}

  static ARK_DEVICE void consume(Consumer& consumer, const Task& task) {
    consumer.wait_for(task, task.first, task.count);
    Programs::column(task.record->params.program.program, [&](auto program) __attribute__((always_inline)) {
      using P = decltype(program);
      using A = decltype(P::accumulator(Pass<0>{}));
      // all accumulators of the consumers must fit the scratch memory
      constexpr bool kFits = static_cast<int>(sizeof(A)) * P::kVector * kConsumerThreads <= kScratchBytes;
      constexpr int V = kFits ? P::kVector : 1;
      static_assert(static_cast<int>(sizeof(A)) * kConsumerThreads <= kScratchBytes,
                    "too many reductions in a column program");
      const abi::OpRecord& r = *task.record;
#pragma unroll 1
      for (int t = task.first; t < task.first + task.count; ++t) {
        if (r.size[P::kDims - 1] % V == 0 && r.params.program.tile % V == 0)
          run_tile<P, V>(consumer, task, t);
        else
          run_tile<P, 1>(consumer, task, t);
      }
    });
  }

 private:
  template <class P, int V>
  static ARK_DEVICE void run_tile(Consumer& consumer, const Task& task, int tile) {
    using A = decltype(P::accumulator(Pass<0>{}));
    constexpr int kReduce = P::kReduceDims;
    const abi::OpRecord& r = *task.record;
    const abi::ProgramParams& p = r.params.program;
    const ProgramContext c(task, p.first_operand, consumer.worker);
    const i64 blocks = (p.num_rows + p.tile - 1) / p.tile;
    const i64 split = tile / blocks, block = tile % blocks;
    const i64 first_column = block * p.tile, columns = min(p.tile, p.num_rows - first_column);
    const i64 first_element = split * p.split, last_element = min(p.row_size, first_element + p.split);

    // more columns than threads: several rounds
    const int lanes = static_cast<int>(min((columns + V - 1) / V, static_cast<i64>(kConsumerThreads)));
    const int groups = kConsumerThreads / lanes;
    const int lane = consumer.thread() % lanes, group = consumer.thread() / lanes;
    A* sums = reinterpret_cast<A*>(consumer.scratch());  // [group][lanes * V]
#pragma unroll 1
    for (i64 start = 0; start < columns; start += lanes * V) {
      const i64 column = start + lane * V;
      if (group < groups && column < columns) {
        i32 x[P::kDims] = {};
        unflatten<kReduce, P::kDims>(r, first_column + column, x);
        A acc[V];
        ARK_EACH acc[i].start();
        const typename P::Uniform u{};
        i64 e = first_element + group;
#pragma unroll 1
        for (; e + 3 * groups < last_element; e += 4 * groups) {  // four vectors in flight
          typename P::template Inputs<V> in[4];
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            unflatten<0, kReduce>(r, e + k * groups, x);
            P::template load<V>(c, x, in[k]);
          }
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            unflatten<0, kReduce>(r, e + k * groups, x);
            P::template element<V>(Pass<0>{}, c, x, e + k * groups, in[k], u, acc, NoSink{});
          }
        }
#pragma unroll 1
        for (; e < last_element; e += groups) {
          unflatten<0, kReduce>(r, e, x);
          typename P::template Inputs<V> in;
          P::template load<V>(c, x, in);
          P::template element<V>(Pass<0>{}, c, x, e, in, u, acc, NoSink{});
        }
        ARK_EACH sums[group * lanes * V + lane * V + i] = acc[i];
      }
      consumer.sync();
#pragma unroll 1
      for (int k = consumer.thread(); k < lanes * V; k += kConsumerThreads) {
        if (start + k >= columns) continue;
        A total = sums[k];
#pragma unroll 1
        for (int g = 1; g < groups; ++g) total.merge(sums[g * lanes * V + k]);
        typename P::Uniform u{};
        P::finish(total, u);
        i32 x[P::kDims] = {};
        unflatten<kReduce, P::kDims>(r, first_column + start + k, x);
        x[0] = split;
        if constexpr (P::kUniformStores) P::uniform_stores(c, x, u);
      }
      consumer.sync();  // before the sums are overwritten
    }
  }
};

}  // namespace ark::device
