// What generated programs are made of: element types, operands as vectors, reductions.
//
// A generated program is a struct (see codegen/program_source.h for the exact text):
//   kDims, kReduceDims, kVector (elements per vector), kPasses (row programs: walks over the row before the last values
//     are known)
//   Inputs<V>: raw values of the loads that need nothing but coordinates; load<V>(c, x, in) issues these loads, so that
//     several vectors can be in flight
//   pointwise, epilogue: run<V>(c, x, roots) and run_loaded<V>(c, x, in, roots)
//   row, prologue: Uniform (reduction results), Accumulator<p>, element<p, V>(c, x, r, in, u, acc, sink),
//     finish<p>(acc, u), uniform_stores(c, x, u)
//   row: its form (codegen/row_form.h) as constants; Scalars, the values that are the same along a row (load_scalars);
//     load<V>(Pass<p>, c, x, u, in) issues the loads that a pass needs, load_more those of them that no earlier pass
//     does, without the ones of load_ahead<V>(c, x, in), which may come before the row itself
//   column: Accumulator<0>, element<0, V>(...) with one accumulator per column, finish<0>, uniform_stores
// All of them are called with the coordinates x of the first of V elements that are neighbours along the last
// dimension.
#pragma once
#include "device/cache_position.cuh"
#include "device/pipeline.cuh"
#include "device/program_math.cuh"

namespace ark::device {

#define ARK_EACH _Pragma("unroll") for (int i = 0; i < V; ++i)

struct bf16 {
  unsigned short bits;
};
struct f16 {
  unsigned short bits;
};
struct boolean {
  unsigned char bits;
};

// Storage -> compute type: f32 for the 16-bit floats, i64 for integers, bool.
ARK_DEVICE float widen(bf16 x) { return __uint_as_float(static_cast<u32>(x.bits) << 16); }
ARK_DEVICE float widen(f16 x) { return f16_to_float(x.bits); }
ARK_DEVICE float widen(float x) { return x; }
ARK_DEVICE double widen(double x) { return x; }
ARK_DEVICE bool widen(boolean x) { return x.bits != 0; }
template <class T>
ARK_DEVICE i64 widen(T x) {
  return static_cast<i64>(x);
}

/// Any compute type -> storage type S, rounded to nearest even; integers wrap.
template <class S, class T>
ARK_DEVICE S narrow(T x) {
  return static_cast<S>(x);
}
template <>
ARK_DEVICE bf16 narrow<bf16, float>(float x) {
  return bf16{float_to_bf16(x)};
}
template <>
ARK_DEVICE f16 narrow<f16, float>(float x) {
  return f16{float_to_f16(x)};
}
template <>
ARK_DEVICE bf16 narrow<bf16, double>(double x) {
  return bf16{float_to_bf16(static_cast<float>(x))};
}
template <>
ARK_DEVICE f16 narrow<f16, double>(double x) {
  return f16{float_to_f16(static_cast<float>(x))};
}
template <>
ARK_DEVICE bf16 narrow<bf16, i64>(i64 x) {
  return bf16{float_to_bf16(static_cast<float>(x))};
}
template <>
ARK_DEVICE f16 narrow<f16, i64>(i64 x) {
  return f16{float_to_f16(static_cast<float>(x))};
}
template <>
ARK_DEVICE bf16 narrow<bf16, bool>(bool x) {
  return bf16{static_cast<unsigned short>(x ? 0x3f80 : 0)};
}
template <>
ARK_DEVICE f16 narrow<f16, bool>(bool x) {
  return f16{static_cast<unsigned short>(x ? 0x3c00 : 0)};
}
template <>
ARK_DEVICE boolean narrow<boolean, float>(float x) {
  return boolean{static_cast<unsigned char>(x != 0)};
}
template <>
ARK_DEVICE boolean narrow<boolean, double>(double x) {
  return boolean{static_cast<unsigned char>(x != 0)};
}
template <>
ARK_DEVICE boolean narrow<boolean, i64>(i64 x) {
  return boolean{static_cast<unsigned char>(x != 0)};
}
template <>
ARK_DEVICE boolean narrow<boolean, bool>(bool x) {
  return boolean{static_cast<unsigned char>(x)};
}
/// Cast: rounded to S and back to S's compute type.
template <class S, class T>
ARK_DEVICE auto cast(T x) {
  return widen(narrow<S>(x));
}

/// a / b for 0 <= a < 2^20, b > 0: half the latency of the general division, which is on the way of every item.
ARK_DEVICE int small_divide(int a, int b) {
  return static_cast<int>(divide_approx(static_cast<float>(a) + 0.5f, static_cast<float>(b)));
}

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

// ---------------------------------------------------------------------------------------------- vectors in memory

/// V neighbouring elements as they lie in memory.
template <class S, int V>
struct alignas(sizeof(S) * V > 16 ? 16 : sizeof(S) * V) Vec {
  S v[V]{};  // zero until loaded: a register that only some paths write would stay alive through the whole kernel
};

/// Elements rounded to S; 16-bit floats two at a time.
template <class S, class T, int V>
ARK_DEVICE void narrow_vector(const T (&from)[V], Vec<S, V>& to) {
  ARK_EACH to.v[i] = narrow<S>(from[i]);
}
template <int V>
ARK_DEVICE void narrow_vector(const float (&from)[V], Vec<bf16, V>& to) {
  if constexpr (V % 2 == 0) {
    u32 words[V / 2];
#pragma unroll
    for (int i = 0; i < V / 2; ++i) words[i] = floats_to_bf16x2(from[2 * i], from[2 * i + 1]);
    __builtin_memcpy(&to, words, sizeof(words));
  } else {
    ARK_EACH to.v[i] = narrow<bf16>(from[i]);
  }
}
template <int V>
ARK_DEVICE void narrow_vector(const float (&from)[V], Vec<f16, V>& to) {
  if constexpr (V % 2 == 0) {
    u32 words[V / 2];
#pragma unroll
    for (int i = 0; i < V / 2; ++i) words[i] = floats_to_f16x2(from[2 * i], from[2 * i + 1]);
    __builtin_memcpy(&to, words, sizeof(words));
  } else {
    ARK_EACH to.v[i] = narrow<f16>(from[i]);
  }
}

/// cast() of a vector.
template <class S, class T, int V, class R>
ARK_DEVICE void cast_vector(const T (&from)[V], R (&to)[V]) {
  Vec<S, V> rounded;
  narrow_vector(from, rounded);
  ARK_EACH to[i] = widen(rounded.v[i]);
}

template <class S>
ARK_DEVICE S load_element(const S* p) {
  const auto raw = load_global<sizeof(S)>(p);
  S s;
  __builtin_memcpy(&s, &raw, sizeof(S));
  return s;
}
template <class S>
ARK_DEVICE void store_element(S* p, S value) {
  Raw<sizeof(S)> raw{};
  __builtin_memcpy(&raw, &value, sizeof(S));
  store_global<sizeof(S)>(p, raw);
}
template <class S, int V>
ARK_DEVICE void load_vector(const S* p, Vec<S, V>& out) {
  constexpr int kPiece = sizeof(S) * V > 16 ? 16 : sizeof(S) * V;
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(S)) * V / kPiece; ++i) {
    const auto raw = load_global<kPiece>(reinterpret_cast<const unsigned char*>(p) + i * kPiece);
    __builtin_memcpy(reinterpret_cast<unsigned char*>(&out) + i * kPiece, &raw, kPiece);
  }
}
template <class S, int V>
ARK_DEVICE void store_vector(S* p, const Vec<S, V>& in) {
  constexpr int kPiece = sizeof(S) * V > 16 ? 16 : sizeof(S) * V;
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(S)) * V / kPiece; ++i) {
    Raw<kPiece> raw{};
    __builtin_memcpy(&raw, reinterpret_cast<const unsigned char*>(&in) + i * kPiece, kPiece);
    store_global<kPiece>(reinterpret_cast<unsigned char*>(p) + i * kPiece, raw);
  }
}

// ---------------------------------------------------------------------------------------------- operands of a program

struct ProgramContext {
  const Worker& worker;
  const Task& task;
  int first_operand;
  u32 vectors;      // bit i: operand i moves 16 bytes at once; what is not known at compile time is asked of the record
  i32 further = 0;  // elements along the last dimension from the coordinates that accesses name to where they are

  ARK_DEVICE ProgramContext(const Task& t, int first, const Worker& w, u32 known_vectors = 0)
      : worker(w), task(t), first_operand(first), vectors(known_vectors) {}
  ARK_DEVICE ProgramContext behind(i32 elements) const {
    ProgramContext c = *this;
    c.further += elements;
    return c;
  }
  ARK_DEVICE const abi::Operand& operand(int i) const { return task.operand(first_operand + i); }
  ARK_DEVICE bool known_vector(int i) const { return (vectors >> (i & 31) & 1) != 0; }
};

/// Elements of S that one access of a vector of V moves: how many must be contiguous and aligned.
template <class S, int V>
inline constexpr int kTogether = V * sizeof(S) > 16 ? 16 / sizeof(S) : V;

/// Whether operands [first, first + count) are contiguous and aligned for vectors of V, so that no load need ask.
template <int V>
ARK_DEVICE bool all_vectors(const Task& task, int first, int count) {
  bool all = true;
  for (int i = first; i < first + count; ++i) {
    const abi::Operand& o = task.operand(i);
    if (o.slot != abi::kNoSlot) all = all && o.vector >= min(V, 16 / element_bytes(o.dtype));
  }
  return all;
}

/// Coordinates are 32 bits wide, and so are strides in elements (plan::pack sees to it): one multiply-add each.
template <int kDims>
ARK_DEVICE i64 element_offset(const abi::Operand& o, const i32 (&x)[kDims], i32 further = 0) {
  i64 at = 0;
#pragma unroll
  for (int d = 0; d < kDims; ++d)
    at = multiply_add_wide(x[d] + (d + 1 < kDims ? 0 : further), static_cast<i32>(o.stride[d]), at);
  return at;
}

/// The same where the last dimension is contiguous: the place along it is an addition that folds into the address.
template <int kDims>
ARK_DEVICE i64 vector_offset(const abi::Operand& o, const i32 (&x)[kDims]) {
  i64 at = 0;
#pragma unroll
  for (int d = 0; d + 1 < kDims; ++d) at = multiply_add_wide(x[d], static_cast<i32>(o.stride[d]), at);
  return at + x[kDims - 1];
}

/// Elements between the operand's element at x, its last dimension contiguous, and the next address that divides by V
/// elements.
template <int V, class S, int kDims>
ARK_DEVICE int elements_until_aligned(const ProgramContext& c, int number, const i32 (&x)[kDims]) {
  const abi::Operand& o = c.operand(number);
  const i64 place = o.offset / static_cast<i64>(sizeof(S)) + element_offset(o, x);
  return static_cast<int>(-place & (V - 1));
}

/// V elements of operand `number` at x.
template <int V, class S, int kDims>
ARK_DEVICE void load_operand(const ProgramContext& c, int number, const i32 (&x)[kDims], Vec<S, V>& out) {
  const abi::Operand& o = c.operand(number);
  if (c.known_vector(number))
    return load_vector(reinterpret_cast<const S*>(o.offset) + vector_offset(o, x) + c.further, out);
  const S* p = reinterpret_cast<const S*>(o.offset) + element_offset(o, x, c.further);
  if constexpr (V == 1) {
    out.v[0] = load_element(p);
  } else {
    const i64 stride = o.stride[kDims - 1];
    if (o.vector >= kTogether<S, V>) {
      load_vector(p, out);
    } else if (stride == 0) {
      const S s = load_element(p);
      ARK_EACH out.v[i] = s;
    } else {
      ARK_EACH out.v[i] = load_element(p + i * stride);
    }
  }
}
template <int V, class S, int kDims>
ARK_DEVICE void store_operand(const ProgramContext& c, int number, const i32 (&x)[kDims], const Vec<S, V>& in) {
  const abi::Operand& o = c.operand(number);
  if (c.known_vector(number)) return store_vector(reinterpret_cast<S*>(o.offset) + vector_offset(o, x) + c.further, in);
  S* p = reinterpret_cast<S*>(o.offset) + element_offset(o, x, c.further);
  if constexpr (V == 1) {
    store_element(p, in.v[0]);
  } else {
    const i64 stride = o.stride[kDims - 1];
    if (o.vector >= kTogether<S, V>) {
      store_vector(p, in);
    } else {
      ARK_EACH store_element(p + i * stride, in.v[i]);
    }
  }
}

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
ARK_DEVICE void report_index(const ProgramContext& c, const abi::Operand& o, i64 a, i64 b) {
  const abi::Operand& parameters = c.task.operand(o.index_operand);
  const i64 limit = parameters.stride[2], place = a < 0 ? a + limit : a;
  const bool first = place < 0 || place >= limit;
  c.worker.report_index_error(c.task.record->op, first ? a : b, first ? limit : parameters.stride[3]);
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

/// Opcode::kLoadParts for V elements. Parts beyond those that are used are not written; of those that are, some may
/// have seen no key (m = -infinity, l = 0).
template <int V>
ARK_DEVICE void load_parts(const ProgramContext& c, int number, const i64 (&row)[V], const i64 (&column)[V],
                           float (&out)[V]) {
  const abi::Operand& parameters = c.operand(number + 3);
  const int parts = static_cast<int>(parameters.stride[0]), rows = static_cast<int>(parameters.stride[1]),
            dim = static_cast<int>(parameters.stride[2]);
  const abi::Operand& scalar = c.operand(number + 4);
  int used = parts;  // the first kEach parts are asked for before it is known
  if (scalar.slot != abi::kNoSlot)
    used = cache_parts(cache_position(scalar, static_cast<int>(parameters.stride[4])),
                       static_cast<int>(scalar.stride[5]), static_cast<int>(parameters.stride[3]), parts);
  const float* values = reinterpret_cast<const float*>(c.operand(number).offset);
  const float* max_sum = reinterpret_cast<const float*>(c.operand(number + 1).offset);
  bool together = V > 1 && V <= 8 && (column[0] & 3) == 0;
  ARK_EACH together = together && row[i] == row[0] && column[i] == column[0] + i;
  constexpr int kEach = 4;  // parts in flight
  ARK_EACH out[i] = 0;
#pragma unroll 1
  for (int first = 0; first < (together ? 1 : V); ++first) {
    int this_row = static_cast<int>(row[0]), this_column = static_cast<int>(column[0]);
    ARK_EACH if (i == first) {
      this_row = static_cast<int>(row[i]);
      this_column = static_cast<int>(column[i]);
    }
    const int group = this_row / rows, in_group = this_row % rows;
    const float* ml = max_sum + (static_cast<i64>(group) * parts * rows + in_group) * 2;
    const float* o = values + (static_cast<i64>(group) * parts * rows + in_group) * dim + this_column;
    float m = -op::infinity(), l = 0, sum[V] = {};
    ARK_EACH sum[i] = 0;
#pragma unroll 1
    for (int part = 0;;) {
      Vec<float, 2> pair[kEach];
      Vec<float, V> value[kEach];
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        const int p = min(part + k, parts - 1);
        load_vector(ml + p * rows * 2, pair[k]);
        if (together)
          load_vector(o + static_cast<i64>(p) * rows * dim, value[k]);
        else
          value[k].v[0] = load_element(o + static_cast<i64>(p) * rows * dim);
      }
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        if (part + k >= used || pair[k].v[1] == 0.0f) continue;  // a part that saw nothing holds no values either
        const float top = fmaxf(m, pair[k].v[0]), old = exp2_approx(m - top), add = exp2_approx(pair[k].v[0] - top);
        m = top;
        l = l * old + pair[k].v[1] * add;
        if (together) {
          ARK_EACH sum[i] = sum[i] * old + value[k].v[i] * add;
        } else {
          sum[0] = sum[0] * old + value[k].v[0] * add;
        }
      }
      part += kEach;
      if (part >= used) break;
    }
    const float scale = l == 0.0f ? 0.0f : divide_approx(1.0f, l);
    if (together) {
      ARK_EACH out[i] = sum[i] * scale;
    } else {
      ARK_EACH if (i == first) out[i] = sum[0] * scale;
    }
  }
}

/// Sums v[i] over the warp; lane l gets the sum of value l / (32 / kCount). A fixed tree. Destroys v.
template <int kCount>
ARK_DEVICE float transpose_sum(float (&v)[kCount], int lane) {
  int mask = 16;
#pragma unroll
  for (int count = kCount; count > 1; count /= 2, mask /= 2) {
    const bool upper = lane & mask;
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      if (i < count / 2) {
        const float keep = upper ? v[i + count / 2] : v[i], give = upper ? v[i] : v[i + count / 2];
        v[i] = keep + __shfl_xor_sync(~0u, give, mask);
      }
    }
  }
#pragma unroll 1
  for (; mask > 0; mask /= 2) v[0] += __shfl_xor_sync(~0u, v[0], mask);
  return v[0];
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

// ---------------------------------------------------------------------------------------------- coordinates

/// Coordinates of flattened index e over dimensions [kFirst, kLast) of the domain.
template <int kFirst, int kLast, int kDims>
ARK_DEVICE void unflatten(const abi::OpRecord& r, i64 e, i32 (&x)[kDims]) {
  if (e >> 31 == 0) {
    u32 rest = static_cast<u32>(e);
#pragma unroll
    for (int d = kLast - 1; d > kFirst; --d) {
      const u32 size = static_cast<u32>(r.size[d]), next = rest / size;
      x[d] = rest - next * size;
      rest = next;
    }
    if constexpr (kLast > kFirst) x[kFirst] = rest;
    return;
  }
#pragma unroll
  for (int d = kLast - 1; d > kFirst; --d) {
    x[d] = e % r.size[d];
    e /= r.size[d];
  }
  if constexpr (kLast > kFirst) x[kFirst] = e;
}

// ---------------------------------------------------------------------------------------------- reductions

/// Any trivially copyable struct from another lane.
template <class T>
ARK_DEVICE T shuffle_xor(const T& value, int mask) {
  static_assert(sizeof(T) % 4 == 0);
  T out;
  u32 words[sizeof(T) / 4];
  __builtin_memcpy(words, &value, sizeof(T));
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(T) / 4); ++i) words[i] = __shfl_xor_sync(~0u, words[i], mask);
  __builtin_memcpy(&out, words, sizeof(T));
  return out;
}

/// One reduction in progress: start(), add(element, index), merge(other accumulator). All merges are in a fixed order.
template <class T>
struct SumAccumulator {
  T value;
  ARK_DEVICE void start() { value = T(0); }
  ARK_DEVICE void add(T x, i64) { value = op::add(value, x); }
  ARK_DEVICE void merge(const SumAccumulator& o) { value = op::add(value, o.value); }
  ARK_DEVICE T result() const { return value; }
};
template <class T>
struct ProdAccumulator {
  T value;
  ARK_DEVICE void start() { value = T(1); }
  ARK_DEVICE void add(T x, i64) { value = op::mul(value, x); }
  ARK_DEVICE void merge(const ProdAccumulator& o) { value = op::mul(value, o.value); }
  ARK_DEVICE T result() const { return value; }
};
template <class T>
ARK_DEVICE T lowest() {
  if constexpr (op::kIsFloat<T>) return static_cast<T>(-op::infinity());
  return static_cast<T>(0x8000000000000000ull);
}
template <class T>
ARK_DEVICE T highest() {
  if constexpr (op::kIsFloat<T>) return static_cast<T>(op::infinity());
  return static_cast<T>(0x7fffffffffffffffull);
}
template <class T>
struct MaxAccumulator {
  T value;
  ARK_DEVICE void start() { value = lowest<T>(); }
  ARK_DEVICE void add(T x, i64) { value = op::maximum(value, x); }
  ARK_DEVICE void merge(const MaxAccumulator& o) { value = op::maximum(value, o.value); }
  ARK_DEVICE T result() const { return value; }
};
template <class T>
struct MinAccumulator {
  T value;
  ARK_DEVICE void start() { value = highest<T>(); }
  ARK_DEVICE void add(T x, i64) { value = op::minimum(value, x); }
  ARK_DEVICE void merge(const MinAccumulator& o) { value = op::minimum(value, o.value); }
  ARK_DEVICE T result() const { return value; }
};
struct AnyAccumulator {
  u32 value;
  ARK_DEVICE void start() { value = 0; }
  ARK_DEVICE void add(bool x, i64) { value |= x; }
  ARK_DEVICE void merge(const AnyAccumulator& o) { value |= o.value; }
  ARK_DEVICE bool result() const { return value != 0; }
};
struct AllAccumulator {
  u32 value;
  ARK_DEVICE void start() { value = 1; }
  ARK_DEVICE void add(bool x, i64) { value &= x; }
  ARK_DEVICE void merge(const AllAccumulator& o) { value &= o.value; }
  ARK_DEVICE bool result() const { return value != 0; }
};
/// First index of the extreme; NaN wins.
template <class T, bool kMax>
struct ArgAccumulator {
  i64 index;
  T value;
  ARK_DEVICE void start() {
    index = 0x7fffffffffffffffll;
    value = kMax ? lowest<T>() : highest<T>();
  }
  ARK_DEVICE void add(T x, i64 i) { merge(ArgAccumulator{i, x}); }
  ARK_DEVICE void merge(const ArgAccumulator& o) {
    const bool here_nan = value != value, there_nan = o.value != o.value;
    const bool better = there_nan ? !here_nan : !here_nan && (kMax ? o.value > value : o.value < value);
    const bool equal = there_nan ? here_nan : o.value == value;
    if (better || (equal && o.index < index)) *this = o;
  }
  ARK_DEVICE i64 result() const { return index; }
};

}  // namespace ark::device
