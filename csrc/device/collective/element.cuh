// Element types of the reductions: how they lie in words, what they are summed in, and the operations. Reductions go in
// rank order, 16-bit floats in fp32 and rounded once: all ranks get the same bits.
#pragma once
#include "device/abi/collective.h"
#include "device/ptx/ptx.cuh"

namespace ark::device {

using abi::ReduceOp;

/// Integers and wide floats: an element is some bytes of a word, or two words.
template <class T>
struct PlainElement {
  using Sum = T;
  static constexpr int kBytes = sizeof(T);
  static constexpr bool kFloat = T(0.5) != T(0);
  ARK_DEVICE static Sum get(const u32* w, int e) {
    if constexpr (kBytes == 8) {
      const u64 bits = static_cast<u64>(w[2 * e + 1]) << 32 | w[2 * e];
      if constexpr (kFloat)
        return __longlong_as_double(static_cast<long long>(bits));
      else
        return static_cast<T>(bits);
    } else if constexpr (kFloat) {
      return __uint_as_float(w[e]);
    } else {
      return static_cast<T>(w[e * kBytes / 4] >> (e * kBytes % 4 * 8));
    }
  }
  /// Into words that are zero.
  ARK_DEVICE static void put(u32* w, int e, Sum value) {
    if constexpr (kBytes == 8) {
      u64 bits;
      if constexpr (kFloat)
        bits = static_cast<u64>(__double_as_longlong(value));
      else
        bits = static_cast<u64>(value);
      w[2 * e] = static_cast<u32>(bits);
      w[2 * e + 1] = static_cast<u32>(bits >> 32);
    } else if constexpr (kFloat) {
      w[e] = __float_as_uint(value);
    } else {
      constexpr u32 kMask = kBytes == 4 ? 0xffffffffu : (1u << (8 * kBytes % 32)) - 1;
      w[e * kBytes / 4] |= (static_cast<u32>(value) & kMask) << (e * kBytes % 4 * 8);
    }
  }
};

template <bool kHalf>
struct ShortFloat {
  using Sum = float;
  static constexpr int kBytes = 2;
  static constexpr bool kFloat = true;
  ARK_DEVICE static Sum get(const u32* w, int e) {
    const u32 word = w[e / 2];
    if constexpr (kHalf)
      return f16_to_float(static_cast<unsigned short>(e % 2 ? word >> 16 : word));
    else
      return __uint_as_float(e % 2 ? word & 0xffff0000u : word << 16);
  }
  ARK_DEVICE static void put(u32* w, int e, Sum value) {
    const u32 bits = kHalf ? float_to_f16(value) : float_to_bf16(value);
    w[e / 2] |= bits << (e % 2 * 16);
  }
};

/// By the value of ark::DType; bool is reduced as bytes of 0 and 1.
template <int kDType>
struct ElementOf;
template <>
struct ElementOf<abi::kTypeBool> : PlainElement<unsigned char> {};
template <>
struct ElementOf<abi::kTypeU8> : PlainElement<unsigned char> {};
template <>
struct ElementOf<abi::kTypeI8> : PlainElement<signed char> {};
template <>
struct ElementOf<abi::kTypeI16> : PlainElement<short> {};
template <>
struct ElementOf<abi::kTypeI32> : PlainElement<int> {};
template <>
struct ElementOf<abi::kTypeI64> : PlainElement<i64> {};
template <>
struct ElementOf<abi::kTypeF16> : ShortFloat<true> {};
template <>
struct ElementOf<abi::kTypeBF16> : ShortFloat<false> {};
template <>
struct ElementOf<abi::kTypeF32> : PlainElement<float> {};
template <>
struct ElementOf<abi::kTypeF64> : PlainElement<double> {};

/// As NCCL: a number wins over NaN, and NaN remains where all ranks have one (of 32 bits: always the same one, so that
/// ranks get the same bits although a NaN of all ones changes on its way).
template <class T>
ARK_DEVICE T least(T a, T b) {
  return a < b ? a : b;
}
ARK_DEVICE float least(float a, float b) { return fminf(a, b); }
ARK_DEVICE double least(double a, double b) { return fmin(a, b); }
template <class T>
ARK_DEVICE T greatest(T a, T b) {
  return a > b ? a : b;
}
ARK_DEVICE float greatest(float a, float b) { return fmaxf(a, b); }
ARK_DEVICE double greatest(double a, double b) { return fmax(a, b); }

template <ReduceOp kOp, bool kFloat, class T>
ARK_DEVICE T combine(T a, T b) {
  if constexpr (kOp == ReduceOp::kSum || kOp == ReduceOp::kAverage) {
    if constexpr (kFloat)
      return a + b;
    else
      return static_cast<T>(static_cast<u64>(a) + static_cast<u64>(b));
  } else if constexpr (kOp == ReduceOp::kProduct) {
    if constexpr (kFloat)
      return a * b;
    else
      return static_cast<T>(static_cast<u64>(a) * static_cast<u64>(b));
  } else if constexpr (kOp == ReduceOp::kMin) {
    return least(a, b);
  } else if constexpr (kOp == ReduceOp::kMax) {
    return greatest(a, b);
  } else if constexpr (!kFloat) {
    if constexpr (kOp == ReduceOp::kBitAnd)
      return a & b;
    else if constexpr (kOp == ReduceOp::kBitOr)
      return a | b;
    else
      return a ^ b;
  }
  return a;
}

template <class E, ReduceOp kOp, int kWords, int kWorld>
ARK_DEVICE void reduce_as(u32 (&out)[kWords], const u32 (&in)[kWorld][kWords]) {
#pragma unroll
  for (int i = 0; i < kWords; i++) out[i] = 0;
#pragma unroll
  for (int e = 0; e < kWords * 4 / E::kBytes; e++) {
    typename E::Sum sum = E::get(in[0], e);
#pragma unroll
    for (int r = 1; r < kWorld; r++) {
      sum = combine<kOp, E::kFloat>(sum, E::get(in[r], e));
      // Small integers of many ranks: taken apart for instructions on pairs of them, they would not fit into registers.
      if constexpr (kWorld > 4 && E::kBytes < 4 && !E::kFloat && (kOp == ReduceOp::kMin || kOp == ReduceOp::kMax))
        sum = static_cast<typename E::Sum>(opaque(static_cast<u32>(sum)));
    }
    if constexpr (kOp == ReduceOp::kAverage) sum = sum / static_cast<typename E::Sum>(kWorld);
    E::put(out, e, sum);
  }
}

/// Element-wise over in[0], in[1], ... in this order.
template <class E, int kWords, int kWorld>
ARK_DEVICE void reduce_words(u32 (&out)[kWords], const u32 (&in)[kWorld][kWords], ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return reduce_as<E, ReduceOp::kSum>(out, in);
    case ReduceOp::kProduct:
      return reduce_as<E, ReduceOp::kProduct>(out, in);
    case ReduceOp::kMin:
      return reduce_as<E, ReduceOp::kMin>(out, in);
    case ReduceOp::kMax:
      return reduce_as<E, ReduceOp::kMax>(out, in);
    case ReduceOp::kAverage:
      return reduce_as<E, ReduceOp::kAverage>(out, in);
    default:
      break;
  }
  if constexpr (!E::kFloat) {
    if (op == ReduceOp::kBitAnd) return reduce_as<E, ReduceOp::kBitAnd>(out, in);
    if (op == ReduceOp::kBitOr) return reduce_as<E, ReduceOp::kBitOr>(out, in);
    return reduce_as<E, ReduceOp::kBitXor>(out, in);
  }
}

/// A piece of user memory of any size, alignment that of its elements, read and written in blocks of kWords words.
template <int kElementBytes>
struct Span {
  unsigned char* data;
  u64 size_bytes;
  bool aligned;  // blocks may be moved as a whole

  ARK_DEVICE Span(const unsigned char* address, u64 bytes)
      : data(const_cast<unsigned char*>(address)),
        size_bytes(bytes),
        aligned((reinterpret_cast<u64>(address) & 15) == 0) {}

  /// Blocks that begin inside; what lies behind the end reads as zero and is not written.
  template <int kWords>
  ARK_DEVICE u64 blocks() const {
    return (size_bytes + kWords * 4 - 1) / (kWords * 4);
  }
  template <int kWords>
  ARK_DEVICE void load(u32 (&w)[kWords], u64 block) const {
    const u64 at = block * (kWords * 4);
    if (aligned && at + kWords * 4 <= size_bytes) {
      const Raw<kWords * 4> raw = load_global<kWords * 4>(data + at);
#pragma unroll
      for (int i = 0; i < kWords; i++) w[i] = raw.w[i];
      return;
    }
#pragma unroll
    for (int i = 0; i < kWords; i++) w[i] = 0;
#pragma unroll
    for (int e = 0; e < kWords * 4 / kElementBytes; e++) {
      if (at + e * kElementBytes >= size_bytes) continue;
      const Raw<kElementBytes> raw = load_global<kElementBytes>(data + at + e * kElementBytes);
      if constexpr (kElementBytes == 8) {
        w[2 * e] = raw.w[0];
        w[2 * e + 1] = raw.w[1];
      } else {
        w[e * kElementBytes / 4] |= raw.w[0] << (e * kElementBytes % 4 * 8);
      }
    }
  }
  /// Several blocks, some of which may lie behind the end (zeros). The loads of whole blocks are issued together and
  /// under no condition: the compiler waits at the end of each conditional one (measured: 0.7 us for each).
  template <int kWords, int kCount>
  ARK_DEVICE void load_many(u32 (&w)[kCount][kWords], u64 block, u64 stride) const {
    const u64 whole = size_bytes / (kWords * 4);
    if (!aligned || whole == 0) {
#pragma unroll
      for (int u = 0; u < kCount; u++) load(w[u], block + u * stride);
      return;
    }
    Raw<kWords * 4> raw[kCount];
#pragma unroll
    for (int u = 0; u < kCount; u++)
      raw[u] = load_global<kWords * 4>(data + min(block + u * stride, whole - 1) * (kWords * 4));
#pragma unroll
    for (int u = 0; u < kCount; u++)
#pragma unroll
      for (int i = 0; i < kWords; i++) w[u][i] = raw[u].w[i];
#pragma unroll
    for (int u = 0; u < kCount; u++)
      if (block + u * stride >= whole) load(w[u], block + u * stride);
  }
  template <int kWords>
  ARK_DEVICE void store(const u32 (&w)[kWords], u64 block) const {
    const u64 at = block * (kWords * 4);
    if (aligned && at + kWords * 4 <= size_bytes) {
      Raw<kWords * 4> raw;
#pragma unroll
      for (int i = 0; i < kWords; i++) raw.w[i] = w[i];
      store_global<kWords * 4>(data + at, raw);
      return;
    }
#pragma unroll
    for (int e = 0; e < kWords * 4 / kElementBytes; e++) {
      if (at + e * kElementBytes >= size_bytes) continue;
      Raw<kElementBytes> raw;
      if constexpr (kElementBytes == 8) {
        raw.w[0] = w[2 * e];
        raw.w[1] = w[2 * e + 1];
      } else {
        raw.w[0] = w[e * kElementBytes / 4] >> (e * kElementBytes % 4 * 8);
      }
      store_global<kElementBytes>(data + at + e * kElementBytes, raw);
    }
  }
};

}  // namespace ark::device
