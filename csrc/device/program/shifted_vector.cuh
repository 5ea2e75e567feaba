// A vector that lies across two aligned ones.
#pragma once
#include "device/program/element.cuh"
#include "device/program/shifted_words.cuh"

namespace ark::device {

/// Elements p[low], ..., p[high - 1] of V (low < high); the others hold anything. No aligned vector is read that has
/// none of these elements.
template <class S, int V>
ARK_DEVICE void load_shifted(const S* p, int low, int high, Vec<S, V>& out) {
  constexpr int kBytes = V * static_cast<int>(sizeof(S));
  if constexpr (kBytes < 4 || kBytes > 16 || V == 1) {
    ARK_EACH if (i >= low && i < high) out.v[i] = load_element(p + i);
  } else {
    constexpr int kWords = kBytes / 4;
    constexpr u64 kMask = ~static_cast<u64>(kBytes - 1);
    const u64 first = reinterpret_cast<u64>(p), begin = first & kMask;
    const u64 lowest = reinterpret_cast<u64>(p + low) & kMask, highest = reinterpret_cast<u64>(p + high - 1) & kMask;
    Vec<S, V> parts[2];
    load_vector(reinterpret_cast<const S*>(max(begin, lowest)), parts[0]);
    load_vector(reinterpret_cast<const S*>(min(begin + kBytes, highest)), parts[1]);
    u32 words[2 * kWords], result[kWords];
    __builtin_memcpy(words, parts, sizeof(words));
    shift_words<kWords>(words, static_cast<u32>(first) & (kBytes - 1), result);
    __builtin_memcpy(&out, result, sizeof(result));
  }
}

}  // namespace ark::device
