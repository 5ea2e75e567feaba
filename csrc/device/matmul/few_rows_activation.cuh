// The activation of a few-row product with several rows, from its prologue into B fragments in registers.
//
// A prologue that reduces: where registers hold what a thread's vectors are made of, every thread reduces over its own
// and what threads of a row have meets in shared memory. Longer rows are walked first, a warp a row, which leaves the
// results in shared memory. The last pass computes every element where it is wanted. A factor of the row is left to the
// epilogue (few_rows_factor.cuh): then there is one pass, and nobody waits for others.
#pragma once
#include "device/matmul/few_rows_factor.cuh"
#include "device/matmul/few_rows_reduction.cuh"

namespace ark::device {

template <class Form>
struct RowsActivation : RowsFragments<Form> {
  using F = RowsFragments<Form>;
  using Reduction = RowsReduction<Form>;
  using Factor = RowsFactor<Form>;
  using R = Rows<Form>;
  using P = typename Form::Prologue;
  using Uniform = typename P::Uniform;
  using Inputs = typename F::Inputs;
  using Fragments = typename F::Fragments;
  static constexpr int kReduceBytes = Reduction::kReduceBytes + Factor::kBytes;

  /// This thread's vectors of a window. `shared`: as of reduce(); `factors` goes on from window to window.
  template <int kWindow, class S>
  static ARK_DEVICE void load(const Consumer& consumer, const Task& task, unsigned char* shared, Fragments& b,
                              typename Factor::Accumulators& factors) {
    if constexpr (Reduction::kKeeps) {
      load_kept<S>(consumer, task, shared, b);
    } else {
      unrolled<F::kBlocks>([&](auto block) __attribute__((always_inline)) {
        constexpr int kBlock = decltype(block)::value;
        const int m = kBlock * 8 + (consumer.lane() >> 2);
        Uniform u{};
        if constexpr (Reduction::kReduces) u = reinterpret_cast<const Uniform*>(shared)[min(m, R::rows(task) - 1)];
        if constexpr (P::kOfSquares)
          load_words<kWindow>(consumer, task, m, b[kBlock], factors[kBlock]);
        else
          load_block<kWindow, S>(consumer, task, m, u, b[kBlock], factors[kBlock]);
      });
    }
  }

 private:
  static ARK_DEVICE constexpr int min_of(int a, int b) { return a < b ? a : b; }

  /// The vectors of row m.
  template <int kWindow, class S>
  static ARK_DEVICE void load_block(const Consumer& consumer, const Task& task, int m, const Uniform& u,
                                    u32 (&b)[F::kVectors][4], typename Factor::Accumulator& factor) {
    // As many in flight as registers allow: a vector takes the place of what it is made of, of which 4 are its own.
    constexpr int kTotal = F::slices_of(kWindow) * F::kSliceVectors,
                  kRoom = (160 - F::kBlocks * kTotal * 4) / (Reduction::kWords > 4 ? Reduction::kWords - 4 : 1),
                  kBatch = kRoom < 2        ? 2
                           : kRoom < kTotal ? kRoom
                                            : kTotal;
    const ProgramContext c = F::context(consumer, task);
    unrolled<(kTotal + kBatch - 1) / kBatch>([&](auto batch) __attribute__((always_inline)) {
      constexpr int kFirst = decltype(batch)::value * kBatch, kCount = min_of(kBatch, kTotal - kFirst);
      Inputs in[kBatch] = {};
      unrolled<kCount>([&](auto i) __attribute__((always_inline)) {
        constexpr int kAt = decltype(i)::value;
        F::template load_vector<kWindow, kFirst + kAt>(consumer, c, m, in[kAt]);
      });
      unrolled<kCount>([&](auto i) __attribute__((always_inline)) {
        constexpr int kAt = decltype(i)::value;
        F::template finish_vector<kWindow, kFirst + kAt, S>(consumer, c, m, in[kAt], u, b[kFirst + kAt], factor);
      });
    });
    unrolled<F::kVectors - kTotal>([&](auto i) __attribute__((always_inline)) {
      u32(&words)[4] = b[kTotal + decltype(i)::value];
      words[0] = words[1] = words[2] = words[3] = 0;
    });
  }

  /// The vectors of row m by words of two elements: their products with the weight, and the sums of their squares. As
  /// much of the row is under way as registers allow, in the place of the products; of the weight a few vectors.
  template <int kWindow>
  static ARK_DEVICE void load_words(const Consumer& consumer, const Task& task, int m, u32 (&b)[F::kVectors][4],
                                    SquaresOfRows& squares) {
    constexpr int kTotal = F::slices_of(kWindow) * F::kSliceVectors, kRow = F::kBlocks * kTotal <= 24 ? kTotal : 4;
    const ProgramContext c = F::context(consumer, task);
    unrolled<(kTotal + kRow - 1) / kRow>([&](auto batch) __attribute__((always_inline)) {
      constexpr int kFirst = decltype(batch)::value * kRow;
      load_some_words<kWindow, kFirst, min_of(kRow, kTotal - kFirst)>(consumer, c, m, b, squares);
    });
    unrolled<F::kVectors - kTotal>([&](auto i) __attribute__((always_inline)) {
      u32(&words)[4] = b[kTotal + decltype(i)::value];
      words[0] = words[1] = words[2] = words[3] = 0;
    });
  }
  template <int kWindow, int kFirst, int kCount>
  static ARK_DEVICE void load_some_words(const Consumer& consumer, const ProgramContext& c, int m,
                                         u32 (&b)[F::kVectors][4], SquaresOfRows& squares) {
    constexpr int kAtOnce = 4;
    Inputs in[kCount] = {};
    unrolled<kCount>([&](auto n) __attribute__((always_inline)) {
      const typename F::template At<kWindow, kFirst + decltype(n)::value> at(consumer, c, m);
      P::template load_squared<8>(at.c, at.x, in[n.value]);
    });
    unrolled<(kCount + kAtOnce - 1) / kAtOnce>([&](auto batch) __attribute__((always_inline)) {
      constexpr int kOf = decltype(batch)::value * kAtOnce, kSome = min_of(kAtOnce, kCount - kOf);
      unrolled<kSome>([&](auto i) __attribute__((always_inline)) {
        constexpr int kAt = kOf + decltype(i)::value;
        const typename F::template At<kWindow, kFirst + kAt> at(consumer, c, m);
        if constexpr (P::kWeighted) P::template load_weight<8>(at.c, at.x, in[kAt]);
      });
      unrolled<kSome>([&](auto i) __attribute__((always_inline)) {
        constexpr int kAt = kOf + decltype(i)::value;
        const typename F::template At<kWindow, kFirst + kAt> at(consumer, c, m);
        finish_words(in[kAt], at.there, b[kFirst + kAt], squares);
      });
    });
  }
  /// `there`: else the vector is behind the row's end.
  static ARK_DEVICE void finish_words(Inputs& in, bool there, u32 (&words)[4], SquaresOfRows& squares) {
    u32 x[4];
    __builtin_memcpy(x, &P::squared(in), sizeof(x));
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = there ? x[i] : 0;
    squares.add(x);
    Vec<bf16, 8> product = P::squared(in);
    if constexpr (P::kWeighted) product = multiplied(product, P::weight(in));
    __builtin_memcpy(words, &product, sizeof(words));
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = there ? words[i] : 0;
  }

  /// The only window of a prologue that reduces, eight rows after the other.
  template <class S>
  static ARK_DEVICE void load_kept(const Consumer& consumer, const Task& task, unsigned char* shared, Fragments& b) {
    const ProgramContext c = F::context(consumer, task);
    unrolled<F::kBlocks>([&](auto block) __attribute__((always_inline)) {
      constexpr int kBlock = decltype(block)::value;
      const int m = kBlock * 8 + (consumer.lane() >> 2);
      Inputs in[F::kVectors];
      Uniform u{};
      unrolled<F::kVectors>([&](auto n) __attribute__((always_inline)) {
        constexpr int kNumber = decltype(n)::value;
        F::template load_vector<0, kNumber>(consumer, c, m, in[kNumber]);
      });
      unrolled<P::kPasses - 1>([&](auto pass) __attribute__((always_inline)) {
        constexpr int kPass = decltype(pass)::value;
        Reduction::template reduce_pass<kPass, (kBlock * (P::kPasses - 1) + kPass) % 2>(consumer, c, m, in, u, shared);
      });
      unrolled<F::kVectors>([&](auto n) __attribute__((always_inline)) {
        constexpr int kNumber = decltype(n)::value;
        auto none = P::accumulator(Pass<P::kPasses - 1>{});
        F::template finish_vector<0, kNumber, S>(consumer, c, m, in[kNumber], u, b[kBlock][kNumber], none);
      });
    });
  }
};

}  // namespace ark::device
