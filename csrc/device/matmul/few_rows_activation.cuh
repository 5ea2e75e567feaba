// The activation of a few-row product with several rows, from its prologue into B fragments in registers.
//
// A slice of a window is the k of a page, cut into rounds of 64 k for each of the eight warps (abi/strip_vectors.h).
//
// A prologue that reduces (a norm): where registers hold what a thread's vectors are made of, every thread reduces over
// its own and what threads of a row have meets in shared memory. Longer rows are walked first, a warp a row, which leaves
// the results in shared memory. The last pass computes every element where it is wanted.
#pragma once
#include "device/abi/strip_vectors.h"
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

template <class A, class B>
inline constexpr bool kSame = false;
template <class A>
inline constexpr bool kSame<A, A> = true;

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
struct RowsActivation {
  using R = Rows<Form>;
  using P = typename Form::Prologue;
  using Uniform = typename P::Uniform;
  using Inputs = typename P::template Inputs<8>;
  static constexpr int kK = R::kK, kBlocks = (R::kM + 7) / 8;
  static constexpr int kWindows = abi::strip_windows(R::kM, kK), kSlices = abi::strip_slices(kK);
  static constexpr int kSliceK = abi::strip_page_k(kK), kRounds = abi::strip_rounds(kK), kSliceVectors = 2 * kRounds;
  static constexpr int kWindowSlices = (kSlices + kWindows - 1) / kWindows, kVectors = kWindowSlices * kSliceVectors;
  static constexpr bool kReduces = P::kPasses > 1;
  static constexpr int kWords = static_cast<int>(sizeof(Inputs)) / 4, kKeptRegisters = 112;
  static constexpr bool kKeeps = kReduces && kWindows == 1 &&
                                 kVectors * (kWords + 4 * (kBlocks - 1)) <= kKeptRegisters &&
                                 most_accumulator_bytes<P>() <= 32;
  /// Shared memory of the reductions: results, or of two passes by turns what each warp has of each row.
  static constexpr int kReduceBytes = !kReduces ? 0
                                      : kKeeps  ? 2 * 8 * kConsumerWarps * most_accumulator_bytes<P>()
                                                : 8 * kBlocks * static_cast<int>(sizeof(Uniform));
  using Fragments = u32[kBlocks][kVectors][4];

  static ARK_DEVICE constexpr int slices_of(int window) {
    return window + 1 < kWindows ? kWindowSlices : kSlices - window * kWindowSlices;
  }
  /// First k of a window, and of the round of vector `number` in it.
  static ARK_DEVICE constexpr int window_start(int window) { return window * kWindowSlices * kSliceK; }
  static ARK_DEVICE constexpr int round_start(int window, int number) {
    return window_start(window) + number / 2 * abi::kStripRoundK;
  }
  static ARK_DEVICE constexpr int rounds_of(int window, int slice) {
    const int start = window_start(window) + slice * kSliceK;
    const int rounds = (kK - start + abi::kStripRoundK - 1) / abi::kStripRoundK;
    return rounds < kRounds ? rounds : kRounds;
  }
  static ARK_DEVICE constexpr bool whole(int window, int number) {
    return round_start(window, number) + abi::kStripRoundK <= kK;
  }
  /// First k of a lane's vector.
  static ARK_DEVICE int place(int window, int number, int warp, int q) {
    return window_start(window) + abi::strip_vector_k(number, warp, q);
  }

  /// Before the first load(): reductions that walk the rows by themselves; ends with a barrier.
  static ARK_DEVICE void reduce(Consumer& consumer, const Task& task, unsigned char* shared) {
    if constexpr (kReduces && !kKeeps) {
      Uniform* uniforms = reinterpret_cast<Uniform*>(shared);
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

  /// This thread's vectors of a window. `shared`: as of reduce().
  template <int kWindow, class S>
  static ARK_DEVICE void load(const Consumer& consumer, const Task& task, unsigned char* shared, Fragments& b) {
    if constexpr (kKeeps) {
      load_kept<S>(consumer, task, shared, b);
    } else {
      unrolled<kBlocks>([&](auto block) __attribute__((always_inline)) {
        constexpr int kBlock = decltype(block)::value;
        const int m = kBlock * 8 + (consumer.lane() >> 2);
        Uniform u{};
        if constexpr (kReduces) u = reinterpret_cast<const Uniform*>(shared)[min(m, R::rows(task) - 1)];
        load_block<kWindow, S>(consumer, task, m, u, b[kBlock]);
      });
    }
  }

 private:
  static ARK_DEVICE ProgramContext context(const Consumer& consumer, const Task& task) {
    return {task, R::kPrologueOperand, consumer.worker, Form::kVectorOperands >> R::kPrologueOperand};
  }

  // Loads and what is made of them stand under no condition: the compiler moves a load to where its only use is, and
  // waits at the end of each branch for what was loaded there. Rows that are not there are the last one again, their
  // sums are nobody's; vectors behind the row's end are read at its start and become zeros.

  /// A vector's place: coordinates that all vectors of a thread share, and what lies between in the context.
  template <int kWindow, int kNumber>
  struct At {
    static constexpr bool kWhole = whole(kWindow, kNumber);
    static constexpr i32 kBehind = kWhole ? window_start(kWindow) + abi::strip_vector_k(kNumber, 0, 0) : 0;
    ProgramContext c;
    i32 x[P::kDims] = {};
    bool there = true;  // else behind the row's end

    ARK_DEVICE At(const Consumer& consumer, const ProgramContext& context, int m) : c(context.behind(kBehind)) {
      const int q = consumer.lane() & 3;
      x[P::kDims - 2] = min(m, R::rows(context.task) - 1);
      if constexpr (kWhole) {
        x[P::kDims - 1] = abi::strip_vector_k(0, consumer.warp(), q);
      } else {
        const int k = place(kWindow, kNumber, consumer.warp(), q);
        there = k < kK;
        x[P::kDims - 1] = there ? k : 0;
      }
    }
    ARK_DEVICE int k() const { return x[P::kDims - 1] + kBehind; }
  };

  template <int kWindow, int kNumber>
  static ARK_DEVICE void load_vector(const Consumer& consumer, const ProgramContext& c, int m, Inputs& in) {
    const At<kWindow, kNumber> at(consumer, c, m);
    P::template load<8>(at.c, at.x, in);
  }
  /// The last pass.
  template <int kWindow, int kNumber, class S>
  static ARK_DEVICE void finish_vector(const Consumer& consumer, const ProgramContext& c, int m, const Inputs& in,
                                       const Uniform& u, u32 (&words)[4]) {
    const At<kWindow, kNumber> at(consumer, c, m);
    if constexpr (kSame<typename P::Copied, S>) {
      static_assert(sizeof(in) == sizeof(words));
      __builtin_memcpy(words, &in, sizeof(words));
    } else {
      auto acc = P::accumulator(Pass<P::kPasses - 1>{});
      P::template element<8>(Pass<P::kPasses - 1>{}, at.c, at.x, at.k(), in, u, acc, FragmentSink<S>{words});
    }
    if constexpr (!decltype(at)::kWhole) {
#pragma unroll
      for (int i = 0; i < 4; ++i) words[i] = at.there ? words[i] : 0;
    }
  }

  /// The vectors of row m.
  template <int kWindow, class S>
  static ARK_DEVICE void load_block(const Consumer& consumer, const Task& task, int m, const Uniform& u,
                                    u32 (&b)[kVectors][4]) {
    // As many in flight as registers allow: a vector takes the place of what it is made of, of which 4 are its own.
    constexpr int kTotal = slices_of(kWindow) * kSliceVectors,
                  kRoom = (160 - kBlocks * kTotal * 4) / (kWords > 4 ? kWords - 4 : 1),
                  kBatch = kRoom < 2        ? 2
                           : kRoom < kTotal ? kRoom
                                            : kTotal;
    const ProgramContext c = context(consumer, task);
    unrolled<(kTotal + kBatch - 1) / kBatch>([&](auto batch) __attribute__((always_inline)) {
      constexpr int kFirst = decltype(batch)::value * kBatch, kCount = min_of(kBatch, kTotal - kFirst);
      Inputs in[kBatch] = {};
      unrolled<kCount>([&](auto i) __attribute__((always_inline)) {
        constexpr int kAt = decltype(i)::value;
        load_vector<kWindow, kFirst + kAt>(consumer, c, m, in[kAt]);
      });
      unrolled<kCount>([&](auto i) __attribute__((always_inline)) {
        constexpr int kAt = decltype(i)::value;
        finish_vector<kWindow, kFirst + kAt, S>(consumer, c, m, in[kAt], u, b[kFirst + kAt]);
      });
    });
    unrolled<kVectors - kTotal>([&](auto i) __attribute__((always_inline)) {
      u32(&words)[4] = b[kTotal + decltype(i)::value];
      words[0] = words[1] = words[2] = words[3] = 0;
    });
  }

  /// The only window of a prologue that reduces, eight rows after the other.
  template <class S>
  static ARK_DEVICE void load_kept(const Consumer& consumer, const Task& task, unsigned char* shared, Fragments& b) {
    const ProgramContext c = context(consumer, task);
    unrolled<kBlocks>([&](auto block) __attribute__((always_inline)) {
      constexpr int kBlock = decltype(block)::value;
      const int m = kBlock * 8 + (consumer.lane() >> 2);
      Inputs in[kVectors];
      Uniform u{};
      unrolled<kVectors>([&](auto n) __attribute__((always_inline)) {
        constexpr int kNumber = decltype(n)::value;
        load_vector<0, kNumber>(consumer, c, m, in[kNumber]);
      });
      unrolled<P::kPasses - 1>([&](auto pass) __attribute__((always_inline)) {
        constexpr int kPass = decltype(pass)::value;
        reduce_pass<kPass, (kBlock * (P::kPasses - 1) + kPass) % 2>(consumer, c, m, in, u, shared);
      });
      unrolled<kVectors>([&](auto n) __attribute__((always_inline)) {
        constexpr int kNumber = decltype(n)::value;
        finish_vector<0, kNumber, S>(consumer, c, m, in[kNumber], u, b[kBlock][kNumber]);
      });
    });
  }

  /// One pass over the kept vectors of row m: lanes of a row by shuffles, warps through shared memory, both in their
  /// order. kTurn: which half of the shared memory, not that of the pass before.
  template <int kPass, int kTurn>
  static ARK_DEVICE void reduce_pass(const Consumer& consumer, const ProgramContext& c, int m,
                                     const Inputs (&in)[kVectors], Uniform& u, unsigned char* shared) {
    using Accumulator = decltype(P::accumulator(Pass<kPass>{}));
    const int lane = consumer.lane(), g = lane >> 2;
    Accumulator* parts = reinterpret_cast<Accumulator*>(shared + kTurn * (kReduceBytes / 2));  // [row of 8][warp]
    Accumulator acc = P::accumulator(Pass<kPass>{});
    acc.start();
    unrolled<kVectors>([&](auto n) __attribute__((always_inline)) {
      constexpr int kNumber = decltype(n)::value;
      const At<0, kNumber> at(consumer, c, m);
      if (at.there) P::template element<8>(Pass<kPass>{}, at.c, at.x, at.k(), in[kNumber], u, acc, NoSink{});
    });
#pragma unroll
    for (int mask = 1; mask < 4; mask *= 2) {
      Accumulator other = shuffle_xor(acc, mask);
      if ((lane & mask) != 0) {
        other.merge(acc);
        acc = other;
      } else {
        acc.merge(other);
      }
    }
    if ((lane & 3) == 0) parts[g * kConsumerWarps + consumer.warp()] = acc;
    consumer.sync();
    const Accumulator* row = parts + g * kConsumerWarps;
    acc = row[0];
#pragma unroll
    for (int w = 1; w < kConsumerWarps; ++w) acc.merge(row[w]);
    P::finish(acc, u);
  }

  static ARK_DEVICE constexpr int min_of(int a, int b) { return a < b ? a : b; }

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
