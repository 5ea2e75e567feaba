// What programs of plain accesses need of the device, for the host: elements, operands, the threads of a worker.
// Accesses outside the operands and off alignment are noted.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "../../../../support/words_on_host.h"
#include "../../threads.h"
#include "device/program/domain.cuh"

namespace ark::device {

using std::max;
using std::min;
#define ARK_EACH for (int i = 0; i < V; ++i)

struct Memory {
  std::vector<std::pair<u64, u64>> ranges;  // of the operands, in bytes
  bool fine = true;

  bool may_touch(const void* p, size_t bytes, size_t alignment) {
    const u64 at = reinterpret_cast<u64>(p);
    const bool inside = std::any_of(ranges.begin(), ranges.end(),
                                    [&](const auto& r) { return at >= r.first && at + bytes <= r.second; });
    const bool allowed = inside && at % alignment == 0;
    if (!allowed) fine = false;
    return allowed;
  }
  /// Aligned words that have something of an operand.
  bool may_load(const void* p, size_t bytes) {
    const u64 at = reinterpret_cast<u64>(p);
    fine = fine && at % bytes == 0 && std::any_of(ranges.begin(), ranges.end(), [&](const auto& r) {
             return at < r.second && at + bytes > r.first;
           });
    return fine;
  }
};
inline Memory memory;

struct f16 {
  unsigned short bits;
};
struct bf16 {
  unsigned short bits;
};
inline float widen(bf16 x) {
  const u32 bits = static_cast<u32>(x.bits) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline float widen(float x) { return x; }
inline double widen(double x) { return x; }
template <class T>
i64 widen(T x) {
  return static_cast<i64>(x);
}
template <class S, class T>
S narrow(T x) {
  return static_cast<S>(x);
}
template <>
inline bf16 narrow<bf16, float>(float x) {
  u32 bits;
  std::memcpy(&bits, &x, 4);
  return {static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
template <class S, class T>
auto cast(T x) {
  return widen(narrow<S>(x));
}
template <class S, int V>
struct alignas(sizeof(S) * V > 16 ? 16 : sizeof(S) * V) Vec {
  S v[V]{};
};
template <class S, class T, int V>
void narrow_vector(const T (&from)[V], Vec<S, V>& to) {
  ARK_EACH to.v[i] = narrow<S>(from[i]);
}
template <class S, int V, class R>
void widen_vector(const Vec<S, V>& from, R (&to)[V]) {
  ARK_EACH to[i] = widen(from.v[i]);
}
template <class S, class T, int V, class R>
void cast_vector(const T (&from)[V], R (&to)[V]) {
  ARK_EACH to[i] = widen(narrow<S>(from[i]));
}

template <class S>
void store_element(S* p, S value) {
  if (memory.may_touch(p, sizeof(S), sizeof(S))) *p = value;
}
template <class S>
S load_element(const S* p) {
  return memory.may_touch(p, sizeof(S), sizeof(S)) ? *p : S{};
}
template <class S, int V>
void load_vector(const S* p, Vec<S, V>& out) {
  constexpr size_t kPiece = min<size_t>(16, sizeof(S) * V);
  for (size_t i = 0; i < sizeof(S) * V; i += kPiece) {
    const auto* from = reinterpret_cast<const unsigned char*>(p) + i;
    if (memory.may_load(from, kPiece)) std::memcpy(reinterpret_cast<unsigned char*>(&out) + i, from, kPiece);
  }
}
template <class S, int V>
void load_vector_if(bool predicate, const S* p, Vec<S, V>& out) {
  if (predicate) load_vector(p, out);
}
template <class S, int V>
void store_vector(S* p, const Vec<S, V>& in) {
  if (memory.may_touch(p, sizeof(S) * V, min<size_t>(16, sizeof(S) * V))) std::memcpy(p, &in, sizeof(S) * V);
}

inline void keep_word(u32&) {}

namespace op {
template <class T>
T add(T a, T b) {
  return a + b;
}
template <class T>
T sub(T a, T b) {
  return a - b;
}
template <class T>
T mul(T a, T b) {
  return a * b;
}
template <class T>
bool eq(T a, T b) {
  return a == b;
}
inline float sqrt(float a) { return std::sqrt(a); }
inline float reciprocal(float a) { return 1 / a; }
inline float relu(float a) { return a > 0 ? a : 0; }
}  // namespace op

struct TaskSlot {
  struct {
    int position, parts_used, part_length;
  } keys;
};
struct Task {
  const abi::OpRecord* record;
  const abi::Operand* operands;
  int first = 0, count = 1;
  const TaskSlot* slot = nullptr;
  const abi::Operand& operand(int i) const { return operands[i]; }
  bool has(int i) const { return operands[i].slot != abi::kNoSlot; }
  template <class S>
  S* address(int i) const {
    return reinterpret_cast<S*>(operands[i].offset);
  }
};
struct Worker {
  struct {
    int scratch = 0;
  } shared;
};
struct ProgramContext {
  inline static Worker worker;
  const Task& task;
  int first_operand = 0;
  u32 vectors = 0;
  i32 further = 0;
  ProgramContext(const Task& of) : task(of) {}
  ProgramContext(const Task& of, int, const Worker&, u32 known = 0) : task(of), vectors(known) {}
  ProgramContext behind(i32 elements) const {
    ProgramContext c = *this;
    c.further += elements;
    return c;
  }
  const abi::Operand& operand(int i) const { return task.operands[i]; }
  bool known_vector(int i) const { return (vectors >> i & 1) != 0; }
};
template <int kDims>
i64 element_offset(const abi::Operand& o, const i32 (&x)[kDims]) {
  i64 at = 0;
  for (int d = 0; d < kDims; ++d) at += x[d] * o.stride[d];
  return at;
}
template <int kDims>
i64 vector_offset(const abi::Operand& o, const i32 (&x)[kDims]) {
  return element_offset(o, x) + (1 - o.stride[kDims - 1]) * x[kDims - 1];
}
template <class S, int kElements>
inline constexpr int kTogether = kElements * sizeof(S) > 16 ? 16 / sizeof(S) : kElements;
template <class S, int kDims>
S* element_at(const ProgramContext& c, int number, const i32 (&x)[kDims]) {
  const abi::Operand& o = c.operand(number);
  return reinterpret_cast<S*>(o.offset) + element_offset(o, x);
}
template <int V, class S, int kDims>
void load_operand(const ProgramContext& c, int number, const i32 (&x)[kDims], Vec<S, V>& out) {
  const i64 stride = c.operand(number).stride[kDims - 1];
  const S* p = element_at<S>(c, number, x) + c.further * stride;
  if (c.known_vector(number)) {
    if (memory.may_touch(p, sizeof(S) * V, min<size_t>(16, sizeof(S) * V))) std::memcpy(&out, p, sizeof(S) * V);
    return;
  }
  ARK_EACH out.v[i] = load_element(p + i * stride);
}
template <int V, class S, int kDims>
void store_operand(const ProgramContext& c, int number, const i32 (&x)[kDims], const Vec<S, V>& in) {
  if (V > 1 && !c.known_vector(number)) memory.fine = false;
  store_vector(element_at<S>(c, number, x) + c.further * c.operand(number).stride[kDims - 1], in);
}
template <int V, int kIndices, int kRun, class S, int kDims>
void store_run(const ProgramContext& c, int number, const i32 (&x)[kDims], i64, i64, bool predicate,
               const Vec<S, V>& in) {
  static_assert(kIndices == 0 && kRun < 0);
  if (predicate) store_operand<V>(c, number, x, in);
}
struct NoRoots {};

#ifndef ARK_HOST_THREADS
#define ARK_HOST_THREADS 5
#endif
inline constexpr int kConsumerThreads = ARK_HOST_THREADS, kConsumerWarps = kConsumerThreads / 32,
                     kScratchBytes = kConsumerThreads * 112;  // as on the device
struct Consumer {
  int number;
  Meeting* barrier = nullptr;  // of the worker's threads
  unsigned char* memory = nullptr;
  Worker worker{};
  int thread() const { return number; }
  int lane() const { return number % 32; }
  int warp() const { return number / 32; }
  unsigned char* scratch() const { return memory; }
  void sync() const { barrier->arrive_and_wait(); }
  void sync_group() const { sync(); }
  void wait_for_item(const Task&) const {}
};
struct Loader {
  bool ok = true;
  Worker worker{};
  void skip(int) {}
};
template <int kPass>
struct Pass {};
struct NoSink {};
template <int V>
bool all_vectors(const Task& task, int first, int count) {
  bool all = true;
  for (int i = first; i < first + count; ++i) all = all && task.operand(i).vector >= V;
  return all;
}
template <int kValue>
struct Number {
  static constexpr int value = kValue;
};
template <int kCount, int kFirst = 0, class F>
void unrolled(F&& f) {
  if constexpr (kFirst < kCount) {
    f(Number<kFirst>{});
    unrolled<kCount, kFirst + 1>(f);
  }
}

}  // namespace ark::device
