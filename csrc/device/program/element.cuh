// The types of elements in memory, and vectors of them: widened to the types that programs compute in, rounded back,
// loaded and stored.
#pragma once
#include "device/program/math.cuh"
#include "device/ptx/ptx.cuh"

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
template <class S>
inline constexpr bool kIsF16 = false;
template <>
inline constexpr bool kIsF16<f16> = true;
template <class S>
inline constexpr bool kIsHalf = kIsF16<S>;  // a float of 16 bits
template <>
inline constexpr bool kIsHalf<bf16> = true;

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

/// V neighbouring elements as they lie in memory.
template <class S, int V>
struct alignas(sizeof(S) * V > 16 ? 16 : sizeof(S) * V) Vec {
  S v[V]{};  // zero until loaded: a register that only some paths write would stay alive through the whole kernel
};

/// The products of two bf16 each, rounded once.
template <int V>
ARK_DEVICE Vec<bf16, V> multiplied(const Vec<bf16, V>& a, const Vec<bf16, V>& b) {
  static_assert(V % 2 == 0);
  u32 x[V / 2], y[V / 2];
  __builtin_memcpy(x, &a, sizeof(x));
  __builtin_memcpy(y, &b, sizeof(y));
#pragma unroll
  for (int i = 0; i < V / 2; ++i) x[i] = multiply_bf16x2(x[i], y[i]);
  Vec<bf16, V> product;
  __builtin_memcpy(&product, x, sizeof(x));
  return product;
}

/// Elements rounded to S; 16-bit floats two at a time.
template <class S, class T, int V>
ARK_DEVICE void narrow_vector(const T (&from)[V], Vec<S, V>& to) {
  ARK_EACH to.v[i] = narrow<S>(from[i]);
}
template <class S, int V>
  requires(kIsHalf<S> && V % 2 == 0)
ARK_DEVICE void narrow_vector(const float (&from)[V], Vec<S, V>& to) {
  u32 words[V / 2];
#pragma unroll
  for (int i = 0; i < V / 2; ++i) words[i] = pack_two<kIsF16<S>>(from[2 * i], from[2 * i + 1]);
  __builtin_memcpy(&to, words, sizeof(words));
}
/// Elements widened; 16-bit floats from words of two, since halves of registers that are kept apart are moved singly.
template <class S, int V, class R>
ARK_DEVICE void widen_vector(const Vec<S, V>& from, R (&to)[V]) {
  ARK_EACH to[i] = widen(from.v[i]);
}
template <class S>
ARK_DEVICE void widen_two(u32 word, float& low, float& high) {
  if constexpr (kIsF16<S>) {
    low = f16_to_float(static_cast<unsigned short>(word));
    high = f16_to_float(static_cast<unsigned short>(word >> 16));
  } else {
    low = __uint_as_float(word << 16);
    high = __uint_as_float(word & 0xffff0000u);
  }
}
template <class S, int V>
  requires(kIsHalf<S> && V % 2 == 0)
ARK_DEVICE void widen_vector(const Vec<S, V>& from, float (&to)[V]) {
  u32 words[V / 2];
  __builtin_memcpy(words, &from, sizeof(words));
#pragma unroll
  for (int i = 0; i < V / 2; ++i) widen_two<S>(words[i], to[2 * i], to[2 * i + 1]);
}
/// cast() of a vector.
template <class S, class T, int V, class R>
ARK_DEVICE void cast_vector(const T (&from)[V], R (&to)[V]) {
  Vec<S, V> rounded;
  narrow_vector(from, rounded);
  widen_vector(rounded, to);
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
/// The same where the predicate holds. Loaded behind a branch, elements of less than a word would be put together anew
/// where the ways meet, for which all that is on its way would be waited for.
template <class S, int V>
ARK_DEVICE void load_vector_if(bool predicate, const S* p, Vec<S, V>& out) {
  constexpr int kPiece = sizeof(S) * V > 16 ? 16 : sizeof(S) * V;
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(S)) * V / kPiece; ++i) {
    const auto raw = load_global_if<kPiece>(predicate, reinterpret_cast<const unsigned char*>(p) + i * kPiece);
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

}  // namespace ark::device
