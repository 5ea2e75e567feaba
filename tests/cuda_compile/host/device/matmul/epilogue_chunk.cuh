// What walks over a product's vectors need of chunks, for the host: their sizes. Whoever walks has the accumulators.
#pragma once
#include "device/program/support.cuh"

namespace ark::device {

inline int thread_number = 0;  // whose walk it is
inline int thread_index() { return thread_number; }
inline void __syncwarp() {}
inline u32 shared_address(const void*) { return 0; }

template <class Program>
consteval bool reads_pairs() {
  return Program::kPairs;
}
template <class Program>
consteval bool reads_two_products() {
  return Program::kGated;
}
template <bool kPairs, bool kGated>
struct Chunk {
  static constexpr int kRows = kPairs || kGated ? 4 : 8, kColumns = kPairs ? 128 : 64, kPitch = kColumns * 4;
  static constexpr int kBytes = kRows * kPitch;
};
template <class Layout, int V>
struct LineRoots {
  u32 line;
  int pair_distance;
};

}  // namespace ark::device
