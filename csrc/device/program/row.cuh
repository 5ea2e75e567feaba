// kRow: a row program over blocks of `tile` rows. How its rows are walked is part of the program (codegen/row_form.h):
// kThreads threads share a row, which they keep in registers (kChunks vectors each, of kRows rows at once) or stream in
// every pass (kChunks = 0). Groups of 32 threads and more are independent of each other.
#pragma once
#include "device/program/row_kept.cuh"
#include "device/program/row_stream.cuh"

namespace ark::device {

/// A sink of rows that yield nothing.
struct RowNoSink {
  ARK_DEVICE NoSink at(i64) const { return {}; }
};

/// How rows are counted: those of one outer dimension are its coordinates, so of 32 bits.
template <bool kNear>
struct RowNumber {
  using type = i64;
};
template <>
struct RowNumber<true> {
  using type = u32;
};

/// Rows [begin, end) of an item.
template <class P>
struct RowRange {
  using Number = typename RowNumber<(P::kDims - P::kReduceDims <= 1)>::type;
  Number begin, end;

  ARK_DEVICE RowRange(const abi::ProgramParams& p, const Task& task) {
    const Number tile = static_cast<Number>(p.tile), first = static_cast<Number>(task.first);
    begin = first * tile;
    end = min(static_cast<Number>(p.num_rows), (first + static_cast<Number>(task.count)) * tile);
  }
};

template <class Programs>
struct Row {
  static ARK_DEVICE void consume(Consumer& consumer, const Task& task) {
    consumer.wait_for_item(task);
    Programs::row(task.record->params.program.program, [&](auto program) __attribute__((always_inline)) {
      using P = decltype(program);
      if constexpr (P::kChunks > 0)
        run_rows<P, KeptRows<P>>(consumer, task);
      else
        run_rows<P, StreamedRow<P>>(consumer, task);
    });
  }

 private:
  template <class P, class Walk>
  static ARK_DEVICE void run_rows(Consumer& consumer, const Task& task) {
    constexpr int kRows = P::kRows;
    const abi::OpRecord& r = *task.record;
    const abi::ProgramParams& p = r.params.program;
    const ProgramContext c(task, p.first_operand, consumer.worker, P::kVectorOperands);
    const RowGroup group{consumer, P::kThreads};
    const RowRange<P> range(p, task);
    const int own = group.index() - group.first(), step = kRows * group.count();
    // the same for all groups that take turns together
    typename RowRange<P>::Number n = range.begin + static_cast<u32>(group.first());
    const auto end = range.end;
    if constexpr (P::kOneTurn) {
#pragma unroll 1
      for (; n < end; n += step) {
        Walk walk{c, group, p.row_size};
        walk.places.start(c, n + own, end, group.count());
        typename P::Uniform u[kRows] = {};
        unrolled<kRows>([&](auto k) __attribute__((always_inline)) {
          P::load_scalars(c, walk.places.row[k.value], u[k.value].scalars);
        });
        walk.load_ahead(walk.places);
        walk.load_once();
        walk.start(u);
        walk.template run<0>(u, consumer.scratch(), RowNoSink{}, [] {});
        store_uniform<P>(c, group, walk.places, u);
      }
      return;
    }
    if (n >= end) return;
    Walk walk{c, group, p.row_size};
    walk.places.start(c, n + own, end, group.count());
    typename P::Scalars scalars[kRows] = {};
    load_scalars<P>(c, walk.places, scalars);
    walk.load_ahead(walk.places);
    walk.load_once();
    const auto turn = [&]() __attribute__((always_inline)) {
      typename P::Uniform u[kRows] = {};
      unrolled<kRows>([&](auto k) __attribute__((always_inline)) { u[k.value].scalars = scalars[k.value]; });
      walk.start(u);
      RowPlaces<P> next = {};
      const bool more = n + step < end;
      if (more) {  // asked for while these rows are worked on
        next.start(c, n + step + own, end, group.count());
        load_scalars<P>(c, next, scalars);
      }
      walk.template run<0>(u, consumer.scratch(), RowNoSink{}, [&] {
        if (more) walk.load_ahead(next);
      });
      store_uniform<P>(c, group, walk.places, u);
      walk.places = next;
      n += step;
      return more;
    };
#pragma unroll 1
    while (turn())
      if (kTwoTurns<P> && !turn()) break;
  }

  static constexpr int kManyChunks = 4;
  /// Two turns of the loop are code of their own: what came in ahead stays in its registers. Moved into others, it is
  /// waited for where the compiler moves it, before the last pass.
  template <class P>
  static constexpr bool kTwoTurns = P::kAhead && !P::kInTurn && P::kRows == 1 && P::kChunks >= kManyChunks;
  template <class P>
  static ARK_DEVICE void store_uniform(const ProgramContext& c, const RowGroup& group, const RowPlaces<P>& places,
                                       const typename P::Uniform (&u)[P::kRows]) {
    if (P::kUniformStores && group.thread() == 0)
      unrolled<P::kRows>([&](auto k) __attribute__((always_inline)) {
        if (places.exists(k.value)) P::uniform_stores(c, places.row[k.value], u[k.value]);
      });
  }
  template <class P>
  static ARK_DEVICE void load_scalars(const ProgramContext& c, const RowPlaces<P>& places,
                                      typename P::Scalars (&scalars)[P::kRows]) {
    unrolled<P::kRows>(
        [&](auto k) __attribute__((always_inline)) { P::load_scalars(c, places.row[k.value], scalars[k.value]); });
  }
};

}  // namespace ark::device
