// kRow: a row program over blocks of `tile` rows. How its rows are walked is part of the program (codegen/row_form.h):
// kThreads threads share a row, which they keep in registers (kChunks vectors each) or, kChunks = 0, stream in every
// pass. Groups of threads are independent of each other.
#pragma once
#include "device/program/row_kept.cuh"
#include "device/program/row_stream.cuh"

namespace ark::device {

/// A sink of rows that yield nothing.
struct RowNoSink {
  ARK_DEVICE NoSink at(i64) const { return {}; }
};

template <class Programs>
struct Row {
  static ARK_DEVICE void load_immutable(Loader&, const Task&) {}
  static ARK_DEVICE void load_dependent(Loader&, const Task&) {}

  static ARK_DEVICE void consume(Consumer& consumer, const Task& task) {
    consumer.wait_for_item(task);
    Programs::row(task.record->params.program.program, [&](auto program) __attribute__((always_inline)) {
      using P = decltype(program);
      if constexpr (P::kChunks > 0)
        run_rows<P, KeptRow<P>>(consumer, task);
      else
        run_rows<P, StreamedRow<P>>(consumer, task);
    });
  }

 private:
  template <class P, class Walk>
  static ARK_DEVICE void run_rows(Consumer& consumer, const Task& task) {
    const abi::OpRecord& r = *task.record;
    const abi::ProgramParams& p = r.params.program;
    const ProgramContext c(task, p.first_operand, consumer.worker, P::kVectorOperands);
    const RowGroup group{consumer, P::kThreads};
    const i64 end = min(p.num_rows, (task.first + static_cast<i64>(task.count)) * p.tile);
    i64 n = task.first * p.tile + group.index();
    if (n >= end) return;
    Walk walk{c, group, p.row_size};
    unflatten<0, P::kDims - P::kReduceDims>(r, n, walk.row);
    typename P::Scalars scalars{};
    P::load_scalars(c, walk.row, scalars);
    walk.load_ahead(walk.row);
#pragma unroll 1
    for (; n < end; n += group.count()) {
      typename P::Uniform u{};
      u.scalars = scalars;
      walk.start(u);
      i32 next[P::kDims] = {};
      const bool more = n + group.count() < end;
      if (more) {  // asked for while this row is worked on
        unflatten<0, P::kDims - P::kReduceDims>(r, n + group.count(), next);
        P::load_scalars(c, next, scalars);
      }
      walk.template run<0>(u, consumer.scratch(), RowNoSink{}, [&] {
        if (more) walk.load_ahead(next);
      });
      if (P::kUniformStores && group.thread() == 0) P::uniform_stores(c, walk.row, u);
#pragma unroll
      for (int d = 0; d < P::kDims; ++d) walk.row[d] = next[d];
    }
  }
};

}  // namespace ark::device
