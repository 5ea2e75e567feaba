// The activation of a few-row product with several rows, from its prologue into B fragments in registers.
//
// Slice s of a window is 1024 k, two rounds of 64 k for each of the eight warps. Of 64 k, the lanes g * 4 + q of row g
// have two vectors of 8 k: those at 8 q and at 32 + 8 q.
//
// A prologue that reduces (a norm) walks its rows first, a warp a row, and leaves the results of its reductions in shared
// memory; the last pass then computes every element where it is wanted.
#pragma once
#include "device/matmul/few_rows_form.cuh"
#include "device/program/row_group.cuh"

namespace ark::device {

/// What the last pass of a prologue yields, rounded: the words of a B fragment.
template <class S>
struct FragmentSink {
  u32 (&words)[4];
  template <int V, class T>
  ARK_DEVICE void yield(const T (&value)[V]) const {
    static_assert(V == 8);
    Vec<S, V> out;
    narrow_vector(value, out);
    __builtin_memcpy(words, &out, sizeof(words));
  }
};

template <class Form>
struct RowsActivation {
  using R = Rows<Form>;
  using P = typename Form::Prologue;
  using Uniform = typename P::Uniform;
  using Inputs = typename P::template Inputs<8>;
  static constexpr int kK = R::kK, kBlocks = (R::kM + 7) / 8;
  static constexpr int kWindows = abi::strip_windows(R::kM, kK), kSlices = (kK + abi::kStripK - 1) / abi::kStripK;
  static constexpr int kWindowSlices = (kSlices + kWindows - 1) / kWindows, kVectors = kWindowSlices * 4;
  static constexpr bool kReduces = P::kPasses > 1;
  static constexpr int kUniformBytes = kReduces ? (8 * kBlocks * static_cast<int>(sizeof(Uniform)) + 15) / 16 * 16 : 0;
  using Fragments = u32[kBlocks][kVectors][4];

  static ARK_DEVICE constexpr int slices_of(int window) {
    return window + 1 < kWindows ? kWindowSlices : kSlices - window * kWindowSlices;
  }
  /// First k of a round, of warp 0.
  static ARK_DEVICE constexpr int start(int window, int slice, int round) {
    return (window * kWindowSlices + slice) * abi::kStripK + round * 512;
  }
  static ARK_DEVICE constexpr int rounds_of(int window, int slice) { return start(window, slice, 1) < kK ? 2 : 1; }
  static ARK_DEVICE constexpr bool whole(int window, int slice, int round) {
    return start(window, slice, round) + 512 <= kK;
  }
  /// First k of a lane's vector.
  static ARK_DEVICE int place(int window, int slice, int round, int half, int warp, int q) {
    return start(window, slice, round) + warp * 64 + half * 32 + q * 8;
  }

  /// The reductions of all rows, for load(); ends with a barrier.
  static ARK_DEVICE void reduce(Consumer& consumer, const Task& task, Uniform* uniforms) {
    if constexpr (kReduces) {
      const ProgramContext c = context(consumer, task);
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

  /// This thread's vectors of a window.
  template <int kWindow, class S>
  static ARK_DEVICE void load(const Consumer& consumer, const Task& task, const Uniform* uniforms, Fragments& b) {
    // As many in flight as registers allow: a vector takes the place of what it is made of, of which 4 are its own.
    constexpr int kTotal = slices_of(kWindow) * 4, kWords = static_cast<int>(sizeof(Inputs)) / 4,
                  kRoom = (160 - kBlocks * kTotal * 4) / (kWords > 4 ? kWords - 4 : 1),
                  kBatch = kRoom < 2        ? 2
                           : kRoom < kTotal ? kRoom
                                            : kTotal;
    const ProgramContext c = context(consumer, task);
    const int g = consumer.lane() >> 2, q = consumer.lane() & 3;
    unrolled<kBlocks>([&](auto block) __attribute__((always_inline)) {
      constexpr int kBlock = decltype(block)::value;
      const int m = kBlock * 8 + g, rows = R::rows(task);
      Uniform u{};
      if constexpr (kReduces) u = uniforms[min(m, rows - 1)];
      unrolled<(kTotal + kBatch - 1) / kBatch>([&](auto batch) __attribute__((always_inline)) {
        constexpr int kFirst = decltype(batch)::value * kBatch;
        Inputs in[kBatch] = {};
        unrolled<kBatch>([&](auto i) __attribute__((always_inline)) {
          constexpr int n = kFirst + decltype(i)::value;
          if constexpr (n < kTotal) {
            i32 x[P::kDims] = {};
            at<kWindow, n>(consumer, q, min(m, rows - 1), x);
            P::template load<8>(c, x, in[i.value]);
          }
        });
        unrolled<kBatch>([&](auto i) __attribute__((always_inline)) {
          constexpr int n = kFirst + decltype(i)::value;
          if constexpr (n < kTotal) {
            u32(&words)[4] = b[kBlock][n];
            words[0] = words[1] = words[2] = words[3] = 0;
            i32 x[P::kDims] = {};
            auto acc = P::accumulator(Pass<P::kPasses - 1>{});
            if (at<kWindow, n>(consumer, q, m, x) && m < rows)
              P::template element<8>(Pass<P::kPasses - 1>{}, c, x, x[P::kDims - 1], in[i.value], u, acc,
                                     FragmentSink<S>{words});
          }
        });
      });
      unrolled<kVectors - kTotal>([&](auto i) __attribute__((always_inline)) {
        u32(&words)[4] = b[kBlock][kTotal + i.value];
        words[0] = words[1] = words[2] = words[3] = 0;
      });
    });
  }

 private:
  static ARK_DEVICE ProgramContext context(const Consumer& consumer, const Task& task) {
    return {task, R::kPrologueOperand, consumer.worker, Form::kVectorOperands >> R::kPrologueOperand};
  }

  // Loads are made under no condition (the compiler waits at the end of each conditional one): what is not there reads
  // something that is.

  /// Coordinates of vector kNumber of a window; false: it is behind the row's end, they are the row's first.
  template <int kWindow, int kNumber>
  static ARK_DEVICE bool at(const Consumer& consumer, int q, int m, i32 (&x)[P::kDims]) {
    constexpr int kSlice = kNumber / 4, kRound = kNumber / 2 % 2;
    const int k = place(kWindow, kSlice, kRound, kNumber % 2, consumer.warp(), q);
    x[P::kDims - 2] = m;
    const bool there = whole(kWindow, kSlice, kRound) || k < kK;
    x[P::kDims - 1] = there ? k : 0;
    return there;
  }

  template <int kPass, class Accumulator>
  static ARK_DEVICE void walk_row(const ProgramContext& c, const RowGroup& group, int m, const Uniform& u,
                                  Accumulator& acc) {
    constexpr int kRoom = 256 / static_cast<int>(sizeof(Inputs)), kRow = (kK + 255) / 256,
                  kUnroll = kRoom < 1      ? 1
                            : kRoom < kRow ? kRoom
                                           : kRow;
#pragma unroll 1
    for (int first = group.thread() * 8; first < kK; first += kUnroll * 256) {
      Inputs in[kUnroll] = {};
      i32 x[P::kDims] = {};
      x[P::kDims - 2] = m;
      unrolled<kUnroll>([&](auto i) __attribute__((always_inline)) {
        const int k = first + i.value * 256;
        x[P::kDims - 1] = k < kK ? k : first;
        P::template load<8>(c, x, in[i.value]);
      });
      unrolled<kUnroll>([&](auto i) __attribute__((always_inline)) {
        x[P::kDims - 1] = first + i.value * 256;
        if (x[P::kDims - 1] < kK)
          P::template element<8>(Pass<kPass>{}, c, x, x[P::kDims - 1], in[i.value], u, acc, NoSink{});
      });
    }
  }
};

}  // namespace ark::device
