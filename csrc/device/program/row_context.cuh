// How the program of rows that are kept reaches its operands.
#pragma once
#include "device/program/indexed_operand.cuh"
#include "device/program/shifted_vector.cuh"

namespace ark::device {

/// A context of one row, and where P::kEdges of one vector or element of it.
template <class P>
struct RowContext : ProgramContext {
  bool writes = true;  // false: what is stored goes nowhere (rows beyond the last one)
  bool inside = true;  // P::kEdges: false: beyond the last of the row, so neither reduced nor stored

  ARK_DEVICE explicit RowContext(const ProgramContext& c) : ProgramContext(c) {}
  ARK_DEVICE RowContext behind(i32 elements) const {
    RowContext c = *this;
    c.further += elements;
    return c;
  }
  ARK_DEVICE bool exists() const { return !P::kEdges || inside; }
};

template <int V, class S, int kDims, class P>
ARK_DEVICE void load_operand(const RowContext<P>& c, int number, const i32 (&x)[kDims], Vec<S, V>& out) {
  if (!P::kEdges || V == 1 || c.known_vector(number))
    return load_operand<V, S, kDims>(static_cast<const ProgramContext&>(c), number, x, out);
  const abi::Operand& o = c.operand(number);  // contiguous along the row (codegen/row_form)
  load_whole_shifted(reinterpret_cast<const S*>(o.offset) + vector_offset(o, x) + c.further, out);
}
template <int V, class S, int kDims, class P>
ARK_DEVICE void store_operand(const RowContext<P>& c, int number, const i32 (&x)[kDims], const Vec<S, V>& in) {
  if (c.writes && c.exists()) store_operand<V, S, kDims>(static_cast<const ProgramContext&>(c), number, x, in);
}
template <int V, int kIndices, class S, int kDims, class P>
ARK_DEVICE void store_irregular(const RowContext<P>& c, int number, const i32 (&x)[kDims], const i64 (&a)[V],
                                const i64 (&b)[V], const bool (&predicate)[V], const Vec<S, V>& in) {
  if (c.writes)
    store_irregular<V, kIndices, S, kDims>(static_cast<const ProgramContext&>(c), number, x, a, b, predicate, in);
}
template <int V, int kIndices, int kRun, class S, int kDims, class P>
ARK_DEVICE void store_run(const RowContext<P>& c, int number, const i32 (&x)[kDims], i64 a, i64 b, bool predicate,
                          const Vec<S, V>& in) {
  if (c.writes)
    store_run<V, kIndices, kRun, S, kDims>(static_cast<const ProgramContext&>(c), number, x, a, b, predicate, in);
}

}  // namespace ark::device
