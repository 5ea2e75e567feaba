// kPointwise: a program over `tile` consecutive elements of the flattened domain. No pages; consumers read and write
// directly, in vectors wherever they are aligned (pointwise_places.cuh): whole ones (pointwise_whole.cuh), those of
// whole rows (pointwise_walk.cuh), of rows off alignment (pointwise_row_walk.cuh), across rows (pointwise_flat.cuh).
// Transposed operands are turned in registers (pointwise_blocks.cuh) or go through shared memory: one that begins
// anywhere (pointwise_windows.cuh), and those of long programs (pointwise_transposed.cuh).
#pragma once
#include "device/program/pointwise_blocks.cuh"
#include "device/program/pointwise_flat.cuh"
#include "device/program/pointwise_places.cuh"
#include "device/program/pointwise_row_walk.cuh"
#include "device/program/pointwise_transposed.cuh"
#include "device/program/pointwise_walk.cuh"
#include "device/program/pointwise_whole.cuh"
#include "device/program/support.cuh"

namespace ark::device {

/// Values of a row are worth a way of their own, though all vectors are whole.
template <class P>
constexpr ARK_DEVICE bool has_row_values() {
  if constexpr (P::kFlat) return P::kRowValues;
  return false;
}
/// Programs with the way of ops whose vectors are all whole.
template <class P>
inline constexpr bool kServesWhole = kWalks<P> && !has_row_values<P>();

template <class Programs>
struct Pointwise {
  static ARK_DEVICE void consume(Consumer& consumer, const Task& task) {
    consumer.wait_for_item(task);
    Programs::pointwise(task.record->params.program.program,
                        [&](auto program) __attribute__((always_inline)) { run<decltype(program)>(consumer, task); });
  }

 private:
  /// Vectors that may end in the next row, where the program's operands and the item allow them.
  template <class P, class Places>
  static ARK_DEVICE bool walk_flat(Consumer& consumer, const ProgramContext& c, Places& places, i64 total) {
    if constexpr (P::kFlat) {
      const FlatRange<P, ProgramContext> range(c, places.rows.begin, places.rows.end, total);
      // where all vectors are within rows: worth a copy only if values are the same along those
      if (!range.exists || !(range.crosses || P::kRowValues)) return false;
      if (range.crosses)
        PointwiseFlat<P, true>(consumer, c).run(range.low, range.high);
      else if constexpr (P::kRowValues)
        PointwiseFlat<P, false>(consumer, c).run(range.low, range.high);
      places.leave_out(range.low, range.high);
      return true;
    }
    return false;
  }

  /// Vectors by coordinates that are worked out anew for each.
  template <class P>
  static ARK_DEVICE void ask_vectors(Consumer& consumer, const ProgramContext& c,
                                     const PointwisePlaces<P, P::kVector, ProgramContext>& places) {
    constexpr int V = P::kVector;
    // worth a copy that asks no operand, unless there are operands that never move by vectors
    constexpr bool kShort = P::kUnroll > 2 && !has_row_values<P>();
    if (kShort && all_vectors<V>(c.task, c.first_operand, P::kNumOperands))
      run_places<P, V>(consumer, ProgramContext(c.task, c.first_operand, consumer.worker, kShort ? ~0u : 0),
                       VectorPlaces<P, V, ProgramContext>{places});
    else
      run_places<P, V>(consumer, c, VectorPlaces<P, V, ProgramContext>{places});
  }
  /// Vectors by coordinates that walk.
  template <class P>
  static ARK_DEVICE void walk_vectors(Consumer& consumer, const ProgramContext& c,
                                      const PointwisePlaces<P, P::kVector, ProgramContext>& places) {
    constexpr int V = P::kVector;
    if (!places.by_rows) {
      PointwiseWalk<P>(consumer, c).run(places.low, places.whole);
    } else if constexpr (kWalksRows<P>) {
      PointwiseRowWalk<P>(consumer, c, places.rows.head, places.rows.begin, places.rows.end).run();
    } else {
      run_places<P, V>(consumer, c, VectorPlaces<P, V, ProgramContext>{places});
    }
  }

  template <class P>
  static ARK_DEVICE void run(Consumer& consumer, const Task& task) {
    const abi::OpRecord& r = *task.record;
    const abi::ProgramParams& p = r.params.program;
    const ProgramContext c(task, p.first_operand, consumer.worker);
    if constexpr (kServesWhole<P>) {
      if (PointwiseWhole<P>::serves(p)) {
        const WholeRange range(p, task.first, task.count, P::kVector);
        PointwiseWhole<P>(consumer, c).run(range);
        if constexpr (P::kDims == 1) run_behind<P>(consumer, c, range);
        return;
      }
    }
    if constexpr (kReadsWhole<P> && !has_row_values<P>()) {
      if (PointwiseWholeRecord<P>::serves(p)) {
        const WholeRange range(p, task.first, task.count, P::kVector);
        PointwiseWholeRecord<P>(consumer, c).run(range);
        if constexpr (P::kDims == 1) run_behind<P>(consumer, c, range);
        return;
      }
    }
    i64 total = 1, begin, end;
    if (p.elements != 0) {
      const NearRange range(p, task.first, task.count);
      total = p.elements, begin = range.begin, end = begin + range.count;
    } else {
#pragma unroll
      for (int d = 0; d < P::kDims; ++d) total *= r.size[d];
      begin = task.first * p.tile, end = min(total, (task.first + static_cast<i64>(task.count)) * p.tile);
    }
    PointwisePlaces<P, P::kVector, ProgramContext> places(c, begin, end);
    if (!walk_flat<P>(consumer, c, places, total) && run_apart<P>(consumer, c, places, total)) return;
    if (places.all_in_vectors()) return;
    run_places<P, 1>(consumer, c, ElementPlaces<P, P::kVector, ProgramContext>{places});
  }

  /// The vectors of an item that is not flat; true: all of its elements.
  template <class P>
  static ARK_DEVICE bool run_apart(Consumer& consumer, const ProgramContext& c,
                                   PointwisePlaces<P, P::kVector, ProgramContext>& places, i64 total) {
    if constexpr (P::kTransposedBytes != 0) {
      if (const u32 active = transposed_operands<P>(c, total); active != 0) {
        if constexpr (has_blocks<P>())
          PointwiseBlocks<P>(consumer, c, active, places.rows.begin, places.rows.end).run();
        else
          PointwiseTransposed<P>(consumer, c, active, places.rows.begin, places.rows.end, total).run();
        return true;
      }
    }
    places.divide(total, kWalksRows<P>);
    if constexpr (kWalks<P>)
      walk_vectors<P>(consumer, c, places);
    else
      ask_vectors<P>(consumer, c, places);
    return kWalksRows<P> && places.by_rows;
  }
  /// Elements behind the last vector: less than one of them.
  template <class P>
  static ARK_DEVICE void run_behind(Consumer& consumer, const ProgramContext& c, const WholeRange& range) {
    if (consumer.thread() >= range.count - range.in_vectors) return;
    const i32 x[1] = {static_cast<i32>(range.begin) + range.in_vectors + consumer.thread()};
    P::template run<1>(c, x, NoRoots{});
  }

  /// Elements, or vectors of V of them, at the places; P::kUnroll vectors in flight per thread.
  template <class P, int V, class Places>
  static ARK_DEVICE void run_places(Consumer& consumer, const ProgramContext& c, const Places& places) {
    // single elements of rows: some in flight, for a row has few of them
    constexpr int kUnroll = V > 1 ? P::kUnroll : P::kFreeRows && P::kUnroll > 2 ? 4 : 1;
#pragma unroll 1
    for (i64 n = consumer.thread(); n < places.count(); n += kUnroll * kConsumerThreads) {
      i32 x[kUnroll][P::kDims] = {};
      bool is_there[kUnroll];
      typename P::template Inputs<V> in[kUnroll];
      unrolled<kUnroll>([&](auto k) __attribute__((always_inline)) {
        is_there[k.value] = places.at(n + k.value * kConsumerThreads, x[k.value]);
        if (is_there[k.value]) P::template load<V>(c, x[k.value], in[k.value]);
      });
      unrolled<kUnroll>([&](auto k) __attribute__((always_inline)) {
        if (is_there[k.value]) P::template run_loaded<V>(c, x[k.value], in[k.value], NoRoots{});
      });
    }
  }
};

}  // namespace ark::device
