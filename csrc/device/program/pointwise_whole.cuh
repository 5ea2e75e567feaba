// Pointwise items of ops whose record says that all vectors lie within rows and items, aligned in every operand
// (abi::ProgramParams::whole): nothing is asked of an operand, nothing is divided, and the first load follows a few
// instructions behind the begin of the item.
#pragma once
#include "device/program/in_flight.cuh"
#include "device/program/pointwise_walk.cuh"

namespace ark::device {

template <class P>
struct WholeContext : VectorContext<P> {
  ARK_DEVICE explicit WholeContext(const ProgramContext& c) : VectorContext<P>(c) {}
  /// Elements from operand i's first to the one at x, contiguous along the last dimension.
  ARK_DEVICE i64 row_place(int i, const i32 (&x)[P::kDims]) const {
    i64 elements = x[P::kDims - 1];
#pragma unroll
    for (int d = 0; d + 1 < P::kDims; ++d) elements = multiply_add_wide(x[d], this->stride[i][d], elements);
    return elements;
  }
  template <class S>
  ARK_DEVICE S* row_at(int i, const i32 (&x)[P::kDims]) const {
    return reinterpret_cast<S*>(this->base[i]) + row_place(i, x);
  }
};
template <int V, class S, int kDims, class P>
ARK_DEVICE void load_operand(const WholeContext<P>& c, int number, const i32 (&x)[kDims], Vec<S, V>& out) {
  if constexpr (V == 1)
    out.v[0] = load_element(c.template at<const S>(number, x));
  else
    load_vector(c.template row_at<const S>(number, x), out);
}
template <int V, class S, int kDims, class P>
ARK_DEVICE void store_operand(const WholeContext<P>& c, int number, const i32 (&x)[kDims], const Vec<S, V>& in) {
  store_vector(c.template row_at<S>(number, x), in);
}

/// A vector of it that may lie behind the item's last, and is not loaded then.
template <class P>
struct WholeIfThere {
  const WholeContext<P>& whole;
  bool is_there;
};
template <int V, class S, int kDims, class P>
ARK_DEVICE void load_operand(const WholeIfThere<P>& c, int number, const i32 (&x)[kDims], Vec<S, V>& out) {
  if constexpr (V * sizeof(S) >= 4 && V > 1) {
    load_vector_if(c.is_there, c.whole.template row_at<const S>(number, x), out);
  } else {
    if (c.is_there) load_operand<V, S, kDims>(c.whole, number, x, out);
  }
}

/// Of such an op; elements behind the last vector are the domain's last.
struct WholeRange : NearRange {
  i32 in_vectors;

  ARK_DEVICE WholeRange(const abi::ProgramParams& p, i32 first, i32 tiles, int vector) : NearRange(p, first, tiles) {
    in_vectors = count & -vector;
  }
};

template <class P>
class PointwiseWhole {
 public:
  static constexpr int V = P::kWholeVector, kUnroll = P::kUnroll * (P::kVector / V);
  static constexpr i32 kDistance = kConsumerThreads * V;

  ARK_DEVICE PointwiseWhole(Consumer& consumer, const ProgramContext& c) : consumer_(consumer), context_(c) {}

  /// Whether the op's vectors are whole, and what is the same along them the program knows to be.
  static ARK_DEVICE bool serves(const abi::ProgramParams& p) { return p.whole != 0 && (p.scalars & ~P::kScalars) == 0; }

  ARK_DEVICE void run(const WholeRange& range) const {
    const i32 e = consumer_.thread() * V;
    if (e >= range.in_vectors) return;
    auto walk = FlatWalk<P::kDims>::near(*context_.task.record, range.begin + static_cast<u32>(e), kDistance);
    if constexpr (kHalves)
      run_halves(range, e, walk);
    else
      run_batches(range, e, walk);
  }

 private:
  using Walk = FlatWalk<P::kDims>;
  using Inputs = typename P::template Inputs<V>;
  static constexpr bool kHalves = P::kPlain && kUnroll >= 4 && sizeof(Inputs) % 4 == 0;
  static constexpr int kHalf = (kUnroll + 1) / 2;
  struct Half {
    InFlight<Inputs> in[kHalf];
  };

  ARK_DEVICE void run_batches(const WholeRange& range, i32 e, Walk walk) const {
#pragma unroll 1
    for (; e < range.in_vectors; e += kUnroll * kDistance) {
      i32 x[kUnroll][P::kDims];
      Inputs in[kUnroll];
      unrolled<kUnroll>([&](auto k) __attribute__((always_inline)) {
#pragma unroll
        for (int d = 0; d < P::kDims; ++d) x[k.value][d] = walk.x[d];
        load(e + k.value * kDistance < range.in_vectors, x[k.value], in[k.value]);
        walk.advance();
      });
      unrolled<kUnroll>([&](auto k) __attribute__((always_inline)) {
        if (e + k.value * kDistance < range.in_vectors)
          P::template run_loaded<V>(context_, x[k.value], in[k.value], NoRoots{});
      });
    }
  }

  /// Half of the vectors are under way while the other half is computed.
  ARK_DEVICE void run_halves(const WholeRange& range, i32 e, Walk walk) const {
    Walk behind = walk;
    Half half[2];
    ask(range, e, walk, half[0]);
#pragma unroll 1
    for (; e < range.in_vectors; e += 2 * kHalf * kDistance) {
      ask(range, e + kHalf * kDistance, walk, half[1]);
      finish(range, e, behind, half[0]);
      ask(range, e + 2 * kHalf * kDistance, walk, half[0]);
      finish(range, e + kHalf * kDistance, behind, half[1]);
    }
  }
  ARK_DEVICE void ask(const WholeRange& range, i32 e, Walk& walk, Half& half) const {
    unrolled<kHalf>([&](auto k) __attribute__((always_inline)) {
      Inputs in;
      load(e + k.value * kDistance < range.in_vectors, walk.x, in);
      half.in[k.value].put(in);
      walk.advance();
    });
  }
  ARK_DEVICE void finish(const WholeRange& range, i32 e, Walk& walk, const Half& half) const {
    // Unknown to the compiler, so that a branch keeps what is computed behind the loads that were asked for last.
    u32 at = static_cast<u32>(e);
    keep_word(at);
    e = static_cast<i32>(at);
    unrolled<kHalf>([&](auto k) __attribute__((always_inline)) {
      if (e + k.value * kDistance < range.in_vectors)
        P::template run_loaded<V>(context_, walk.x, half.in[k.value].get(), NoRoots{});
      walk.advance();
    });
  }

  ARK_DEVICE void load(bool is_there, const i32 (&x)[P::kDims], typename P::template Inputs<V>& in) const {
    if constexpr (P::kPlain) {
      P::template load<V>(WholeIfThere<P>{context_, is_there}, x, in);
    } else {
      if (is_there) P::template load<V>(context_, x, in);
    }
  }

  Consumer& consumer_;
  const WholeContext<P> context_;
};

/// Programs of more operands than a context keeps: where each lies is read from the record, but nothing else is asked.
template <class P>
inline constexpr bool kReadsWhole = !kWalks<P> && P::kVector > 1 && P::kUnroll <= 2 && !P::kFlagged &&
                                    P::kNumOperands > 0 && P::kNumOperands <= 32 && P::kTransposedBytes == 0;

struct WholeRecordContext : ProgramContext {
  using ProgramContext::ProgramContext;
};
template <int V, int kIndices, int kRun, class S, int kDims>
ARK_DEVICE void load_run(const WholeRecordContext& c, int number, const i32 (&x)[kDims], i64 a, i64 b, bool predicate,
                         Vec<S, V>& out) {
  if constexpr (kIndices == 0 && V > 1) {
    if (predicate)
      load_vector(reinterpret_cast<const S*>(c.operand(number).offset) + vector_offset(c.operand(number), x), out);
  } else {
    load_run<V, kIndices, kRun>(static_cast<const ProgramContext&>(c), number, x, a, b, predicate, out);
  }
}

template <class P>
class PointwiseWholeRecord {
 public:
  static constexpr int V = P::kVector;

  ARK_DEVICE PointwiseWholeRecord(Consumer& consumer, const ProgramContext& c)
      : consumer_(consumer), context_(c.task, c.first_operand, c.worker, ~P::kScalars) {}

  static ARK_DEVICE bool serves(const abi::ProgramParams& p) {
    return p.masked != 0 && (p.scalars & ~P::kScalars) == 0;
  }

  ARK_DEVICE void run(const WholeRange& range) const {
#pragma unroll 1
    for (i32 e = consumer_.thread() * V; e < range.in_vectors; e += kConsumerThreads * V) {
      i32 x[P::kDims] = {};
      unflatten_near<0, P::kDims>(*context_.task.record, range.begin + static_cast<u32>(e), x);
      typename P::template Inputs<V> in;
      P::template load<V>(context_, x, in);
      P::template run_loaded<V>(context_, x, in, NoRoots{});
    }
  }

 private:
  Consumer& consumer_;
  const WholeRecordContext context_;
};

}  // namespace ark::device
