// The vectors of a few-row product's activation with several rows: which k a thread has, how it loads and finishes
// them.
//
// A slice of a window is the k of a page, cut into rounds of 64 k for each of the eight warps (abi/strip_vectors.h).
#pragma once
#include "device/abi/strip_vectors.h"
#include "device/matmul/few_rows_form.cuh"

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

template <class Form>
struct RowsFragments {
  using R = Rows<Form>;
  using P = typename Form::Prologue;
  using Uniform = typename P::Uniform;
  using Inputs = typename P::template Inputs<8>;
  static constexpr int kK = R::kK, kBlocks = (R::kM + 7) / 8;
  static constexpr bool kOfColumns = R::kColumns != 0;
  static constexpr int kWindows = kOfColumns ? abi::column_windows(R::kM, kK) : abi::strip_windows(R::kM, kK),
                       kSlices = kOfColumns ? abi::column_slices(kK) : abi::strip_slices(kK),
                       kSliceK = kOfColumns ? abi::kColumnSliceK : abi::strip_page_k(kK);
  static constexpr int kRounds = kSliceK / abi::kStripRoundK, kSliceVectors = 2 * kRounds;
  static constexpr int kWindowSlices = (kSlices + kWindows - 1) / kWindows, kVectors = kWindowSlices * kSliceVectors;
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
  template <int kWindow, int kNumber, class S, class Accumulator>
  static ARK_DEVICE void finish_vector(const Consumer& consumer, const ProgramContext& c, int m, const Inputs& in,
                                       const Uniform& u, u32 (&words)[4], Accumulator& acc) {
    const At<kWindow, kNumber> at(consumer, c, m);
    if constexpr (kSame<typename P::Copied, S>) {
      static_assert(sizeof(in) == sizeof(words));
      __builtin_memcpy(words, &in, sizeof(words));
    } else {
      const Accumulator before = acc;
      P::template element<8>(Pass<P::kPasses - 1>{}, at.c, at.x, at.k(), in, u, acc, FragmentSink<S>{words});
      if (!decltype(at)::kWhole && !at.there) acc = before;
    }
    if constexpr (!decltype(at)::kWhole) {
#pragma unroll
      for (int i = 0; i < 4; ++i) words[i] = at.there ? words[i] : 0;
    }
  }
};

}  // namespace ark::device
