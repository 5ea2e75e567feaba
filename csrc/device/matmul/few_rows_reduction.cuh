// Reductions of a few-row product's prologue with several rows (a norm): over the elements that a thread keeps, or by a
// walk over the rows that leaves the results in shared memory.
#pragma once
#include "device/matmul/few_rows_fragments.cuh"
#include "device/program/row_group.cuh"

namespace ark::device {

/// Of the passes of a program before its last.
template <class P, int kPass = 0>
consteval int most_accumulator_bytes() {
  if constexpr (kPass + 1 < P::kPasses) {
    constexpr int kOwn = sizeof(decltype(P::accumulator(Pass<kPass>{})));
    constexpr int kOthers = most_accumulator_bytes<P, kPass + 1>();
    return kOwn > kOthers ? kOwn : kOthers;
  }
  return 0;
}

template <class Form>
struct RowsReduction {
  using F = RowsFragments<Form>;
  using R = Rows<Form>;
  using P = typename Form::Prologue;
  using Uniform = typename P::Uniform;
  using Inputs = typename F::Inputs;
  static constexpr bool kReduces = P::kPasses > 1;
  static constexpr int kWords = static_cast<int>(sizeof(Inputs)) / 4, kKeptRegisters = 112;
  static constexpr bool kKeeps = kReduces && F::kWindows == 1 &&
                                 F::kVectors * (kWords + 4 * (F::kBlocks - 1)) <= kKeptRegisters &&
                                 most_accumulator_bytes<P>() <= 32;
  /// Shared memory of the reductions: results, or of two passes by turns what each warp has of each row.
  static constexpr int kReduceBytes = !kReduces ? 0
                                      : kKeeps  ? 2 * 8 * kConsumerWarps * most_accumulator_bytes<P>()
                                                : 8 * F::kBlocks * static_cast<int>(sizeof(Uniform));

  /// Before the first load(): reductions that walk the rows by themselves; ends with a barrier.
  static ARK_DEVICE void reduce(Consumer& consumer, const Task& task, unsigned char* shared) {
    if constexpr (kReduces && !kKeeps) {
      Uniform* uniforms = reinterpret_cast<Uniform*>(shared);
      const ProgramContext c = F::context(consumer, task);
      const RowGroup group{consumer, 32};
#pragma unroll 1
      for (int m = consumer.warp(); m < R::rows(task); m += kConsumerWarps) {
        Uniform u{};
        unrolled<P::kPasses - 1>([&](auto pass) __attribute__((always_inline)) {
          auto acc = P::accumulator(Pass<decltype(pass)::value>{});
          acc.start();
          walk_row<decltype(pass)::value>(c, group, m, u, acc);
          group.reduce(acc, nullptr);
          P::finish(acc, u);
        });
        if (consumer.lane() == 0) uniforms[m] = u;
      }
      consumer.sync();
    }
  }

  /// One pass over the kept vectors of row m: lanes of a row by shuffles, warps through shared memory, both in their
  /// order. kTurn: which half of the shared memory, not that of the pass before.
  template <int kPass, int kTurn>
  static ARK_DEVICE void reduce_pass(const Consumer& consumer, const ProgramContext& c, int m,
                                     const Inputs (&in)[F::kVectors], Uniform& u, unsigned char* shared) {
    using Accumulator = decltype(P::accumulator(Pass<kPass>{}));
    const int lane = consumer.lane(), g = lane >> 2;
    Accumulator* parts = reinterpret_cast<Accumulator*>(shared + kTurn * (kReduceBytes / 2));  // [row of 8][warp]
    Accumulator acc = P::accumulator(Pass<kPass>{});
    acc.start();
    unrolled<F::kVectors>([&](auto n) __attribute__((always_inline)) {
      constexpr int kNumber = decltype(n)::value;
      const typename F::template At<0, kNumber> at(consumer, c, m);
      if (at.there) P::template element<8>(Pass<kPass>{}, at.c, at.x, at.k(), in[kNumber], u, acc, NoSink{});
    });
    merge_lanes_of<4>(acc, lane);
    if ((lane & 3) == 0) parts[g * kConsumerWarps + consumer.warp()] = acc;
    consumer.sync();
    P::finish(merged_over_warps(parts + g * kConsumerWarps), u);
  }

 private:
  template <int kPass, class Accumulator>
  static ARK_DEVICE void walk_row(const ProgramContext& c, const RowGroup& group, int m, const Uniform& u,
                                  Accumulator& acc) {
    constexpr int kRoom = 256 / static_cast<int>(sizeof(Inputs)), kRow = (F::kK + 255) / 256,
                  kUnroll = kRoom < 1      ? 1
                            : kRoom < kRow ? kRoom
                                           : kRow;
#pragma unroll 1
    for (int first = group.thread() * 8; first < F::kK; first += kUnroll * 256) {
      Inputs in[kUnroll] = {};
      i32 x[P::kDims] = {};
      x[P::kDims - 2] = m;
      unrolled<kUnroll>([&](auto i) __attribute__((always_inline)) {
        const int k = first + i.value * 256;
        x[P::kDims - 1] = k < F::kK ? k : first;
        P::template load<8>(c, x, in[i.value]);
      });
      unrolled<kUnroll>([&](auto i) __attribute__((always_inline)) {
        x[P::kDims - 1] = first + i.value * 256;
        if (x[P::kDims - 1] < F::kK)
          P::template element<8>(Pass<kPass>{}, c, x, x[P::kDims - 1], in[i.value], u, acc, NoSink{});
      });
    }
  }
};

}  // namespace ark::device
