// Operands of a program: where an element lies by its coordinates, loads and stores of vectors there.
#pragma once
#include "device/loop/pipeline.cuh"
#include "device/program/element.cuh"

namespace ark::device {

/// a / b for 0 <= a < 2^20, b > 0: half the latency of the general division, which is on the way of every item.
ARK_DEVICE int small_divide(int a, int b) {
  return static_cast<int>(divide_approx(static_cast<float>(a) + 0.5f, static_cast<float>(b)));
}

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
    if (o.slot != abi::kNoSlot) all = all && o.vector >= moved_at_once<V>(o.dtype);
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

}  // namespace ark::device
