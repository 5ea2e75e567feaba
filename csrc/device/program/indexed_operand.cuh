// Operands of a program that are reached by index registers too: gathers, scatters, their bounds.
#pragma once
#include "device/program/operand.cuh"

namespace ark::device {

/// Where index registers lead: false when one is out of its extent (reported).
struct IndexedOffset {
  i64 offset;
  bool valid;
};
ARK_DEVICE IndexedOffset indexed_offset(const ProgramContext& c, const abi::Operand& o, i64 a, i64 b, int num_indices) {
  if (o.index_operand < 0 || num_indices == 0) return {0, true};
  const abi::Operand& parameters = c.task.operand(o.index_operand);
  if (a < 0) a += parameters.stride[2];
  bool valid = a >= 0 && a < parameters.stride[2];
  i64 offset = a * parameters.stride[0];
  if (num_indices > 1) {
    if (b < 0) b += parameters.stride[3];
    valid = valid && b >= 0 && b < parameters.stride[3];
    offset += b * parameters.stride[1];
  }
  return {offset, valid};
}
/// Tells of the index of an access that indexed_offset found out of range.
ARK_DEVICE void note_index(abi::RunState* state, int op, const abi::Operand& parameters, i64 a, i64 b) {
  const i64 limit = parameters.stride[2], place = a < 0 ? a + limit : a;
  const bool first = place < 0 || place >= limit;
  note_index_error(state, op, first ? a : b, first ? limit : parameters.stride[3]);
}
/// Kept out of the instruction cache of those whose indices are right.
__device__ __noinline__ void note_index_called(abi::RunState* state, int op, const abi::Operand* parameters, i64 a,
                                               i64 b) {
  note_index(state, op, *parameters, a, b);
}
ARK_DEVICE void report_index(const ProgramContext& c, const abi::Operand& o, i64 a, i64 b) {
  const abi::Operand& parameters = c.task.operand(o.index_operand);
  if constexpr (ARK_CALLED_WAITS != 0)
    note_index_called(c.worker.launch.state, c.task.record->op, &parameters, a, b);
  else
    note_index(c.worker.launch.state, c.task.record->op, parameters, a, b);
}
/// Opcode::kCheckIndex.
template <bool kWraps>
ARK_DEVICE i64 check_index(const ProgramContext& c, i64 index, i64 extent, bool wanted) {
  const i64 place = kWraps && index < 0 ? index + extent : index;
  if (place >= 0 && place < extent) return place;
  if (wanted) c.worker.report_index_error(c.task.record->op, index, extent);
  return extent;
}
/// What an out-of-range read gives: NaN, or 0 where there is none.
template <class S>
ARK_DEVICE S out_of_range_value() {
  return S{};
}
template <>
ARK_DEVICE bf16 out_of_range_value<bf16>() {
  return bf16{0x7fff};
}
template <>
ARK_DEVICE f16 out_of_range_value<f16>() {
  return f16{0x7fff};
}
template <>
ARK_DEVICE float out_of_range_value<float>() {
  return op::not_a_number();
}
template <>
ARK_DEVICE double out_of_range_value<double>() {
  return op::not_a_number();
}

/// V elements at x, moved by per-element index registers (kIndices of them) where `predicate` holds, else 0.
template <int V, int kIndices, class S, int kDims>
ARK_DEVICE void load_irregular(const ProgramContext& c, int number, const i32 (&x)[kDims], const i64 (&a)[V],
                               const i64 (&b)[V], const bool (&predicate)[V], Vec<S, V>& out) {
  const abi::Operand& o = c.operand(number);
  const S* p = reinterpret_cast<const S*>(o.offset) + element_offset(o, x, c.further);
  const i64 stride = o.stride[kDims - 1];
  if constexpr (V > 1) {  // the usual gather of rows: one index for all V elements
    bool same = o.vector >= kTogether<S, V>;
    ARK_EACH same = same && predicate[i] && (kIndices < 1 || a[i] == a[0]) && (kIndices < 2 || b[i] == b[0]);
    if (same) {
      const IndexedOffset at = indexed_offset(c, o, a[0], b[0], kIndices);
      if (at.valid) {
        load_vector(p + at.offset, out);
        return;
      }
    }
  }
  ARK_EACH {
    out.v[i] = S{};
    if (predicate[i]) {
      const IndexedOffset at = indexed_offset(c, o, a[i], b[i], kIndices);
      if (at.valid) {
        out.v[i] = load_element(p + i * stride + at.offset);
      } else {
        out.v[i] = out_of_range_value<S>();
        report_index(c, o, a[i], b[i]);
      }
    }
  }
}
/// The same with one index and predicate for all of them.
template <int V, int kIndices, class S, int kDims>
ARK_DEVICE void load_gathered(const ProgramContext& c, int number, const i32 (&x)[kDims], i64 a, i64 b, bool predicate,
                              Vec<S, V>& out) {
  const abi::Operand& o = c.operand(number);
  const IndexedOffset at = predicate ? indexed_offset(c, o, a, b, kIndices) : IndexedOffset{0, false};
  if (at.valid) {
    const S* p = reinterpret_cast<const S*>(o.offset) + at.offset;
    if (c.known_vector(number)) return load_vector(p + vector_offset(o, x) + c.further, out);
    p += element_offset(o, x, c.further);
    const i64 stride = o.stride[kDims - 1];
    ARK_EACH out.v[i] = load_element(p + i * stride);
  } else {
    ARK_EACH out.v[i] = predicate ? out_of_range_value<S>() : S{};
    if (predicate) report_index(c, o, a, b);
  }
}
template <int V, int kIndices, class S, int kDims>
ARK_DEVICE void store_irregular(const ProgramContext& c, int number, const i32 (&x)[kDims], const i64 (&a)[V],
                                const i64 (&b)[V], const bool (&predicate)[V], const Vec<S, V>& in) {
  const abi::Operand& o = c.operand(number);
  S* p = reinterpret_cast<S*>(o.offset) + element_offset(o, x, c.further);
  const i64 stride = o.stride[kDims - 1];
  if constexpr (V > 1) {
    bool same = o.vector >= kTogether<S, V>;
    ARK_EACH same = same && predicate[i] && (kIndices < 1 || a[i] == a[0]) && (kIndices < 2 || b[i] == b[0]);
    if (same) {
      const IndexedOffset at = indexed_offset(c, o, a[0], b[0], kIndices);
      if (at.valid) {
        store_vector(p + at.offset, in);
        return;
      }
    }
  }
  ARK_EACH {
    if (predicate[i]) {
      const IndexedOffset at = indexed_offset(c, o, a[i], b[i], kIndices);
      if (at.valid)
        store_element(p + i * stride + at.offset, in.v[i]);
      else
        report_index(c, o, a[i], b[i]);
    }
  }
}

/// Where the V elements of an access lie whose index registers stay the same or, number kRun of them, count up along
/// the vector.
struct IndexedRun {
  i64 offset, step;  // of the first element, and to the next
  bool regular;      // all elements are in range and lie `step` apart
};
template <int V, int kIndices, int kRun, int kDims>
ARK_DEVICE IndexedRun indexed_run(const ProgramContext& c, const abi::Operand& o, const i32 (&x)[kDims], i64 a, i64 b) {
  IndexedRun run{element_offset(o, x, c.further), o.stride[kDims - 1], true};
  if (kIndices == 0 || o.index_operand < 0) return run;
  const abi::Operand& parameters = c.task.operand(o.index_operand);
  const IndexedOffset first = indexed_offset(c, o, a, b, kIndices);
  run.offset += first.offset;
  run.regular = first.valid;
  if constexpr (kRun >= 0 && V > 1) {
    run.step += parameters.stride[kRun];
    const i64 from = kRun == 0 ? a : b, end = from < 0 ? 0 : parameters.stride[2 + kRun];
    run.regular = run.regular && from + V <= end;
  }
  return run;
}
template <class S, int V>
ARK_DEVICE bool moves_together(const S* p, i64 step) {
  return step == 1 && (reinterpret_cast<unsigned long long>(p) & (sizeof(S) * kTogether<S, V> - 1)) == 0;
}
/// load_irregular for such an access: one address instead of V.
template <int V, int kIndices, int kRun, class S, int kDims>
ARK_DEVICE void load_run(const ProgramContext& c, int number, const i32 (&x)[kDims], i64 a, i64 b, bool predicate,
                         Vec<S, V>& out) {
  if (!predicate) return;
  const abi::Operand& o = c.operand(number);
  const IndexedRun run = indexed_run<V, kIndices, kRun>(c, o, x, a, b);
  const S* p = reinterpret_cast<const S*>(o.offset) + run.offset;
  if constexpr (V == 1) {
    out.v[0] = out_of_range_value<S>();
    if (run.regular)
      out.v[0] = load_element(p);
    else
      report_index(c, o, a, b);
    return;
  }
  if (run.regular) {
    if (moves_together<S, V>(p, run.step)) {
      load_vector(p, out);
    } else {
      ARK_EACH out.v[i] = load_element(p + i * run.step);
    }
    return;
  }
#pragma unroll 1
  for (int k = 0; k < V; ++k) {  // an end of the indexed dimension lies within the vector
    const IndexedOffset at = indexed_offset(c, o, a + (kRun == 0 ? k : 0), b + (kRun == 1 ? k : 0), kIndices);
    S value = out_of_range_value<S>();
    if (at.valid)
      value = load_element(reinterpret_cast<const S*>(o.offset) + element_offset(o, x, c.further) +
                           k * o.stride[kDims - 1] + at.offset);
    else
      report_index(c, o, a + (kRun == 0 ? k : 0), b + (kRun == 1 ? k : 0));
    ARK_EACH if (i == k) out.v[i] = value;
  }
}
template <int V, int kIndices, int kRun, class S, int kDims>
ARK_DEVICE void store_run(const ProgramContext& c, int number, const i32 (&x)[kDims], i64 a, i64 b, bool predicate,
                          const Vec<S, V>& in) {
  if (!predicate) return;
  const abi::Operand& o = c.operand(number);
  const IndexedRun run = indexed_run<V, kIndices, kRun>(c, o, x, a, b);
  S* p = reinterpret_cast<S*>(o.offset) + run.offset;
  if constexpr (V == 1) {
    if (run.regular)
      store_element(p, in.v[0]);
    else
      report_index(c, o, a, b);
    return;
  }
  if (run.regular) {
    if (moves_together<S, V>(p, run.step)) {
      store_vector(p, in);
    } else {
      ARK_EACH store_element(p + i * run.step, in.v[i]);
    }
    return;
  }
#pragma unroll 1
  for (int k = 0; k < V; ++k) {
    const IndexedOffset at = indexed_offset(c, o, a + (kRun == 0 ? k : 0), b + (kRun == 1 ? k : 0), kIndices);
    S value = in.v[0];
    ARK_EACH if (i == k) value = in.v[i];
    if (at.valid)
      store_element(
          reinterpret_cast<S*>(o.offset) + element_offset(o, x, c.further) + k * o.stride[kDims - 1] + at.offset,
          value);
    else
      report_index(c, o, a + (kRun == 0 ? k : 0), b + (kRun == 1 ? k : 0));
  }
}

}  // namespace ark::device
