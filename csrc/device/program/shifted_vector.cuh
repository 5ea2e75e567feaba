// Vectors that begin anywhere: the aligned pieces that one lies in are loaded at once, and moved into place when its
// values are needed. Loading and moving apart keeps the loads of several vectors in flight: what moves behind a branch
// is waited for there.
#pragma once
#include "device/program/element.cuh"
#include "device/program/shifted_words.cuh"

namespace ark::device {

/// Pieces of 16 bytes, or the vector's size if that is less. Vectors below 4 bytes are held as they are.
template <class S, int V, bool kWords = (V > 1 && V * sizeof(S) >= 4)>
struct HeldVector {
  static constexpr int kBytes = V * static_cast<int>(sizeof(S)), kPiece = kBytes < 16 ? kBytes : 16;
  static constexpr int kPieces = kBytes / kPiece + 1;
  u32 words[kPieces * kPiece / 4]{};
  u32 shift = 0;  // bytes before the vector

  ARK_DEVICE void set_piece(int j, const S* p) {
    Vec<S, kPiece / static_cast<int>(sizeof(S))> piece;
    load_vector(p, piece);
    __builtin_memcpy(words + j * (kPiece / 4), &piece, kPiece);
  }
  /// Of elements that were loaded one by one; whole words from here on: the compiler would else take those of the other
  /// ways apart too, where they are loaded.
  ARK_DEVICE void set(const Vec<S, V>& whole) {
    __builtin_memcpy(words, &whole, kBytes);
#pragma unroll
    for (int w = 0; w < kBytes / 4; ++w) keep_word(words[w]);
  }
  ARK_DEVICE void get(Vec<S, V>& out) const { __builtin_memcpy(&out, words, kBytes); }
  ARK_DEVICE void get_moved(Vec<S, V>& out) const {
    u32 from[kPieces * kPiece / 4], to[kBytes / 4];
#pragma unroll
    for (int w = 0; w < kPieces * kPiece / 4; ++w) from[w] = words[w];
    shift_words<kPiece / 4>(from, shift, to);
    __builtin_memcpy(&out, to, kBytes);
  }
};
template <class S, int V>
struct HeldVector<S, V, false> {
  Vec<S, V> whole;

  ARK_DEVICE void set(const Vec<S, V>& all) { whole = all; }
  ARK_DEVICE void get(Vec<S, V>& out) const { out = whole; }
  ARK_DEVICE void get_moved(Vec<S, V>& out) const { out = whole; }
};

/// Elements p[low], ..., p[high - 1] of V (low < high); the others hold anything. No aligned piece is read that has
/// none of these elements.
template <class S, int V>
ARK_DEVICE void hold_shifted(const S* p, int low, int high, HeldVector<S, V>& out) {
  if constexpr (V == 1 || V * sizeof(S) < 4) {
    ARK_EACH if (i >= low && i < high) out.whole.v[i] = load_element(p + i);
  } else {
    constexpr int kPiece = HeldVector<S, V>::kPiece;
    constexpr u64 kMask = ~static_cast<u64>(kPiece - 1);
    const u64 first = reinterpret_cast<u64>(p), begin = first & kMask;
    const u64 lowest = reinterpret_cast<u64>(p + low) & kMask, highest = reinterpret_cast<u64>(p + high - 1) & kMask;
#pragma unroll
    for (int j = 0; j < HeldVector<S, V>::kPieces; ++j)
      out.set_piece(j, reinterpret_cast<const S*>(min(max(begin + j * kPiece, lowest), highest)));
    out.shift = static_cast<u32>(first) & (kPiece - 1);
  }
}
/// The same where p is aligned at pieces.
template <class S, int V>
ARK_DEVICE void hold_aligned(const S* p, int low, int high, HeldVector<S, V>& out) {
  if constexpr (V == 1 || V * sizeof(S) < 4) {
    ARK_EACH if (i >= low && i < high) out.whole.v[i] = load_element(p + i);
  } else {
    constexpr int kPiece = HeldVector<S, V>::kPiece, kLength = kPiece / static_cast<int>(sizeof(S));
#pragma unroll
    for (int j = 0; j + 1 < HeldVector<S, V>::kPieces; ++j)
      if (V == kLength || (low < (j + 1) * kLength && high > j * kLength)) out.set_piece(j, p + j * kLength);
  }
}

/// All V elements of p, of which none is read that lies in another piece: held and moved at once.
template <class S, int V>
ARK_DEVICE void load_whole_shifted(const S* p, Vec<S, V>& out) {
  if constexpr (V == 1 || V * sizeof(S) < 4) {
    ARK_EACH out.v[i] = load_element(p + i);
  } else {
    using Held = HeldVector<S, V>;
    constexpr u64 kMask = ~static_cast<u64>(Held::kPiece - 1);
    const u64 first = reinterpret_cast<u64>(p), begin = first & kMask;
    Held held;
#pragma unroll
    for (int j = 0; j + 1 < Held::kPieces; ++j) held.set_piece(j, reinterpret_cast<const S*>(begin + j * Held::kPiece));
    held.set_piece(Held::kPieces - 1, reinterpret_cast<const S*>((first + Held::kBytes - sizeof(S)) & kMask));
    held.shift = static_cast<u32>(first) & (Held::kPiece - 1);
    held.get_moved(out);
  }
}

/// Held and moved at once.
template <class S, int V>
ARK_DEVICE void load_shifted(const S* p, int low, int high, Vec<S, V>& out) {
  HeldVector<S, V> held;
  hold_shifted(p, low, high, held);
  held.get_moved(out);
}

/// The elements of `first` before `cut`, those of `second` from there on.
template <class S, int V>
ARK_DEVICE void join_vectors(int cut, const Vec<S, V>& first, const Vec<S, V>& second, Vec<S, V>& out) {
  if constexpr (V == 1 || V * sizeof(S) < 4) {
    ARK_EACH out.v[i] = i < cut ? first.v[i] : second.v[i];
  } else {
    constexpr int kWords = V * static_cast<int>(sizeof(S)) / 4;
    u32 before[kWords], after[kWords];
    __builtin_memcpy(before, &first, sizeof(before));
    __builtin_memcpy(after, &second, sizeof(after));
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      const u32 mask = low_bytes(cut * static_cast<int>(sizeof(S)) - 4 * w);
      before[w] = (before[w] & mask) | (after[w] & ~mask);
    }
    __builtin_memcpy(&out, before, sizeof(before));
  }
}

}  // namespace ark::device
