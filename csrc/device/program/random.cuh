// Random numbers of programs: Philox4x32-10 (Salmon et al., SC 2011), key = seed, counter = (index / 4, offset). The
// element at `index` has word index % 4, as 24 bits in [0, 1). Neighbours share a counter: a vector of them asks once.
#pragma once
#include "device/ptx/ptx.cuh"

namespace ark::device::op {

struct PhiloxWords {
  u32 word[4];

  ARK_DEVICE float uniform(int at) const { return static_cast<float>(word[at] >> 8) * 5.9604644775390625e-8f; }
};

/// kInTurn: a loop of two rounds, a fifth of the code.
template <bool kInTurn = false>
ARK_DEVICE PhiloxWords philox(i64 seed, i64 offset, u64 block) {
  u32 key0 = static_cast<u32>(seed), key1 = static_cast<u32>(static_cast<u64>(seed) >> 32);
  u32 c0 = static_cast<u32>(block), c1 = static_cast<u32>(block >> 32), c2 = static_cast<u32>(offset),
      c3 = static_cast<u32>(static_cast<u64>(offset) >> 32);
#pragma unroll(kInTurn ? 2 : 10)
  for (int round = 0; round < 10; ++round) {
    // one instruction each, which both halves are of
    const u64 left = static_cast<u64>(0xCD9E8D57u) * c2, right = static_cast<u64>(0xD2511F53u) * c0;
    c0 = static_cast<u32>(left >> 32) ^ c1 ^ key0;
    c2 = static_cast<u32>(right >> 32) ^ c3 ^ key1;
    c1 = static_cast<u32>(left);
    c3 = static_cast<u32>(right);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

ARK_DEVICE float rand(i64 seed, i64 offset, i64 index) {
  const PhiloxWords words = philox(seed, offset, static_cast<u64>(index) / 4);
  const float pair[2] = {index & 1 ? words.uniform(1) : words.uniform(0),
                         index & 1 ? words.uniform(3) : words.uniform(2)};
  return index & 2 ? pair[1] : pair[0];
}

/// Elements `first` to first + V - 1. Where they are whole blocks of four (or half a one, of two elements) that is
/// V / 4 times the work; others go one by one.
template <int V>
ARK_DEVICE void rand_run(i64 seed, i64 offset, i64 first, float (&out)[V]) {
  constexpr int kStep = V < 4 ? V : 4;
  static_assert(V % kStep == 0);
  if (V > 1 && first % kStep == 0) {
#pragma unroll
    for (int i = 0; i < V; i += kStep) {
      const PhiloxWords words = philox(seed, offset, static_cast<u64>(first + i) / 4);
#pragma unroll
      for (int k = 0; k < kStep; ++k)
        out[i + k] = kStep == 4 || (first & 2) == 0 ? words.uniform(k) : words.uniform(k + 4 - kStep);
    }
    return;
  }
#pragma unroll 1
  for (int n = 0; n < V; ++n) {
    const float value = rand(seed, offset, first + n);
#pragma unroll
    for (int i = 0; i < V; ++i) out[i] = i == n ? value : out[i];
  }
}

/// Elements of any indices.
template <int V>
ARK_DEVICE void rand_vector(i64 seed, i64 offset, const i64 (&index)[V], float (&out)[V]) {
  bool run = true;
#pragma unroll
  for (int i = 1; i < V; ++i) run = run && index[i] == index[0] + i;
  if (run) return rand_run<V>(seed, offset, index[0], out);
#pragma unroll 1
  for (int n = 0; n < V; ++n) {
    i64 at = index[0];
#pragma unroll
    for (int i = 1; i < V; ++i) at = i == n ? index[i] : at;
    const float value = rand(seed, offset, at);
#pragma unroll
    for (int i = 0; i < V; ++i) out[i] = i == n ? value : out[i];
  }
}

/// The same as a loop over the blocks that the elements touch, for code that runs once: neighbours have one, or two.
template <int V>
ARK_DEVICE void rand_in_turn(i64 seed, i64 offset, const i64 (&index)[V], float (&out)[V]) {
  u32 left = (1u << V) - 1;
#pragma unroll 1
  while (left != 0) {
    i64 at = index[0];
#pragma unroll
    for (int i = 1; i < V; ++i) at = (left & ((1u << i) - 1)) == 0 ? index[i] : at;
    const PhiloxWords words = philox<true>(seed, offset, static_cast<u64>(at) / 4);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      if ((index[i] ^ at) >> 2 != 0) continue;
      const float pair[2] = {index[i] & 1 ? words.uniform(1) : words.uniform(0),
                             index[i] & 1 ? words.uniform(3) : words.uniform(2)};
      out[i] = index[i] & 2 ? pair[1] : pair[0];
      left &= ~(1u << i);
    }
  }
}
/// Neighbours from `first` on: one code for whole blocks and others.
template <int V>
ARK_DEVICE void rand_in_turn(i64 seed, i64 offset, i64 first, float (&out)[V]) {
#pragma unroll 1
  for (i64 block = first >> 2; block <= (first + V - 1) >> 2; ++block) {
    const PhiloxWords words = philox<true>(seed, offset, static_cast<u64>(block));
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const i64 at = first + i;
      const float pair[2] = {at & 1 ? words.uniform(1) : words.uniform(0),
                             at & 1 ? words.uniform(3) : words.uniform(2)};
      if (at >> 2 == block) out[i] = at & 2 ? pair[1] : pair[0];
    }
  }
}

}  // namespace ark::device::op
