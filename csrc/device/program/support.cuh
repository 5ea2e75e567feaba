// What generated programs are made of: elements and vectors (element.cuh), operands (operand.cuh, batch_stores.cuh,
// indexed_operand.cuh, attention_parts.cuh), reductions (reduction.cuh) and what is below.
//
// A generated program is a struct (see codegen/program_source.h for the exact text):
//   kDims, kReduceDims, kVector (elements per vector), kPasses (row programs: walks over the row before the last values
//     are known)
//   Inputs<V>: raw values of the loads that need nothing but coordinates; load<V>(c, x, in) issues these loads, so that
//     several vectors can be in flight
//   pointwise of plain accesses: HeldInputs<V>, the loads as they come (shifted_vector.cuh), by hold<V>(c, x, held),
//     and take<V>(c, held, in), which moves them into place
//   pointwise: the flat way (codegen/flat_form.h, pointwise_flat.cuh) if kFlat: RowInputs, RowValues,
//     load_row(c, x, in), row_values(c, x, in); FlatInputs<V, kCross> and FlatVectors<V>, held and in place:
//     load_flat_vectors(c, place, held), take_flat_vectors(c, place, held, in); run_flat<V>(c, e, cut, in, first,
//     second)
//   pointwise, epilogue: run<V>(c, x, roots) and run_loaded<V>(c, x, in, roots)
//   epilogue: kPairs; kLoads, kStores: the operands that are reached by coordinates alone; ByBatch (batch_stores.cuh)
//     where one of its stores goes through an operand that the batch says
//   row, prologue: Uniform (reduction results), Accumulator<p>, element<p, V>(c, x, r, in, u, acc, sink),
//     finish<p>(acc, u), uniform_stores(c, x, u)
//   row: its form (codegen/row_form.h) as constants; Scalars, the values that are the same along a row (load_scalars);
//     load<V>(Pass<p>, c, x, u, in) issues the loads that a pass needs, load_more those of them that no earlier pass
//     does, without the ones of load_ahead<V>(c, x, in), which may come before the row itself, and of
//     load_standing<V>(c, x, in), which rows have in common
//   column: Accumulator<0>, element<0, V>(...) with one accumulator per column, finish<0>, uniform_stores; kLoads, and
//     those of them by vectors; kColumnWays (device/abi/column_ways.h)
// All of them are called with the coordinates x of the first of V elements that are neighbours along the last
// dimension.
//
// What a called family computes is defined on every path. A value that some path leaves undefined is alive before that,
// so in the whole kernel around the call, round its loop: accumulators of columns that a path left so took 24 registers
// from the main loops beside them (a backward of BERT-Large: 1.9 KB of spills by NVRTC, 48 with these defined).
#pragma once
#include "device/loop/pipeline.cuh"
#include "device/program/attention_parts.cuh"
#include "device/program/batch_stores.cuh"
#include "device/program/domain.cuh"
#include "device/program/element.cuh"
#include "device/program/in_turn.cuh"
#include "device/program/indexed_operand.cuh"
#include "device/program/math.cuh"
#include "device/program/operand.cuh"
#include "device/program/random.cuh"
#include "device/program/reduction.cuh"

namespace ark::device {

/// f(Number<0>{}), ..., f(Number<kCount - 1>{}). Unrolled by the front end: arrays indexed by the number are in
/// registers for certain, which loops with #pragma unroll do not guarantee when the elements are copied as bytes.
template <int kValue>
struct Number {
  static constexpr int value = kValue;
};
template <int kCount, int kFirst = 0, class F>
ARK_DEVICE void unrolled(F&& f) {
  if constexpr (kFirst < kCount) {
    f(Number<kFirst>{});
    unrolled<kCount, kFirst + 1>(f);
  }
}

template <int kPass>
struct Pass {};  // walk number kPass over a row

/// Roots of programs that have none.
struct NoRoots {};
/// Sinks of row programs that yield nothing.
struct NoSink {
  template <int V, class T>
  ARK_DEVICE void yield(const T (&)[V]) const {}
};

}  // namespace ark::device
