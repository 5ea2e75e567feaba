// Vectors that are asked for in one turn of a loop and used in a later one.
#pragma once
#include "device/ptx/ptx.cuh"

namespace ark::device {

/// What the loads of a vector yield, from asking to adding. It goes round a loop, so by words: 16-bit elements would be
/// moved into halves of registers one by one, right behind their load, which waits for it before the next one.
template <class Inputs>
struct InFlight {
  Inputs inputs;

  ARK_DEVICE void put(const Inputs& in) { inputs = in; }
  ARK_DEVICE const Inputs& get() const { return inputs; }
};
template <class Inputs>
  requires(sizeof(Inputs) % 4 == 0)
struct InFlight<Inputs> {
  u32 words[sizeof(Inputs) / 4] = {};

  ARK_DEVICE void put(const Inputs& in) {
    __builtin_memcpy(words, &in, sizeof(words));
#pragma unroll
    for (u32& word : words) keep_word(word);
  }
  ARK_DEVICE Inputs get() const {
    Inputs in;
    __builtin_memcpy(&in, words, sizeof(words));
    return in;
  }
};

}  // namespace ark::device
