// The threads that work on a row together, and how they reduce.
#pragma once
#include "device/program/support.cuh"

namespace ark::device {

/// Of two lanes whose numbers differ in `mask`, in both: the lower one's part comes first.
template <class A>
ARK_DEVICE void merge_with_lane(A& acc, int mask, int lane) {
  A other = shuffle_xor(acc, mask);
  if (lane & mask) {
    other.merge(acc);
    acc = other;
  } else {
    acc.merge(other);
  }
}
/// Of kLanes lanes next to each other, in each of them.
template <int kLanes, class A>
ARK_DEVICE void merge_lanes_of(A& acc, int lane) {
#pragma unroll
  for (int mask = 1; mask < kLanes; mask *= 2) merge_with_lane(acc, mask, lane);
}
/// What the warps have left, in their order.
template <class A>
ARK_DEVICE A merged_over_warps(const A* parts) {
  A acc = parts[0];
#pragma unroll
  for (int w = 1; w < kConsumerWarps; ++w) acc.merge(parts[w]);
  return acc;
}

/// The threads that share a row: 4, 8, 16, 32, 128 or 256 of them.
struct RowGroup {
  const Consumer& consumer;
  int size;

  ARK_DEVICE bool has_all() const { return size == kConsumerThreads; }  // then nothing is worked out
  ARK_DEVICE int thread() const { return has_all() ? consumer.thread() : consumer.thread() & (size - 1); }
  ARK_DEVICE int index() const { return has_all() ? 0 : consumer.thread() / size; }
  ARK_DEVICE int count() const { return kConsumerThreads / size; }
  /// Index of the first group among those that must call reduce() together: the warp's.
  ARK_DEVICE int first() const { return size < 32 ? consumer.thread() / 32 * (32 / size) : index(); }
  ARK_DEVICE void sync() const {
    if (has_all())
      consumer.sync();
    else if (size == 128)
      consumer.sync_group();
    else
      __syncwarp();
  }
  /// The accumulators of all threads of the group, merged in a fixed tree; every thread gets the result. `buffer`:
  /// shared memory for 8 accumulators, used by every call (two barriers keep calls apart). All lanes of a warp call it
  /// together.
  template <class A>
  ARK_DEVICE void reduce(A& acc, unsigned char* buffer) const {
    if constexpr (kLong<A>) {
      reduce_in_turn(acc, buffer);
    } else if constexpr (!A::kEmpty) {
#pragma unroll
      for (int mask = 16; mask > 0; mask >>= 1) {
        if (mask >= size) continue;
        merge_lanes(acc, mask);
      }
      if (size <= 32) return;
      A* parts = reinterpret_cast<A*>(buffer);
      const int warps = size / 32, first = index() * warps;
      if (consumer.lane() == 0) parts[consumer.warp()] = acc;
      sync();
      A all[kWarps];  // all reads at once, then merged in order
      if (has_all())
        read_all(buffer, all);
      else
        unrolled<kWarps>([&](auto w) __attribute__((always_inline)) { all[w.value] = parts[min(first + w.value, 7)]; });
      acc = all[0];
      unrolled<kWarps - 1>([&](auto w) __attribute__((always_inline)) {
        if (w.value + 1 < warps) acc.merge(all[w.value + 1]);
      });
      sync();
    }
  }

 private:
  static constexpr int kWarps = kConsumerThreads / 32;

  /// By 16 bytes.
  template <class A>
  static ARK_DEVICE void read_all(const unsigned char* buffer, A (&all)[kWarps]) {
    struct alignas(16) Piece {
      u32 words[4];
    };
    constexpr int kPieces = static_cast<int>((sizeof(all) + sizeof(Piece) - 1) / sizeof(Piece));
    Piece pieces[kPieces];
#pragma unroll
    for (int i = 0; i < kPieces; ++i) pieces[i] = reinterpret_cast<const Piece*>(buffer)[i];
    __builtin_memcpy(&all, &pieces, sizeof(all));
  }
  /// Those of places, with their indices of 64 bits, in what runs once a token; several sums of 64 bits as well.
  template <class A>
  static constexpr bool kLong = alignof(A) == 8 && sizeof(A) > 8;

  template <class A>
  ARK_DEVICE void merge_lanes(A& acc, int mask) const {
    merge_with_lane(acc, mask, consumer.lane());
  }
  /// The same by loops: a merge of places is dozens of instructions, and code that runs once is fetched anew.
  template <class A>
  ARK_DEVICE void reduce_in_turn(A& acc, unsigned char* buffer) const {
#pragma unroll 1
    for (int mask = min(size, 32) / 2; mask > 0; mask >>= 1) merge_lanes(acc, mask);
    if (size <= 32) return;
    A* parts = reinterpret_cast<A*>(buffer);
    const int warps = size / 32, first = index() * warps;
    if (consumer.lane() == 0) parts[consumer.warp()] = acc;
    sync();
    acc = parts[first];
#pragma unroll 1
    for (int w = 1; w < warps; ++w) acc.merge(parts[first + w]);
    sync();
  }
};

/// The accumulators of rows that are worked on at once, reduced side by side.
template <class A, int kRows>
struct RowAccumulators {
  static constexpr bool kEmpty = A::kEmpty;
  A row[kRows];

  ARK_DEVICE void start() {
    unrolled<kRows>([&](auto r) __attribute__((always_inline)) { row[r.value].start(); });
  }
  ARK_DEVICE void merge(const RowAccumulators& other) {
    unrolled<kRows>([&](auto r) __attribute__((always_inline)) { row[r.value].merge(other.row[r.value]); });
  }
};

/// Coordinates of element `at` of a row.
template <class P>
ARK_DEVICE void row_coordinates(const ProgramContext& c, const i32 (&row)[P::kDims], i64 at, i32 (&x)[P::kDims]) {
#pragma unroll
  for (int d = 0; d < P::kDims; ++d) x[d] = row[d];
  if constexpr (P::kReduceDims == 1)
    x[P::kDims - 1] = static_cast<i32>(at);
  else
    unflatten<P::kDims - P::kReduceDims, P::kDims>(*c.task.record, at, x);
}

/// f(context, coordinates) of element `first` + kFurther of a row: one address per operand serves all that differ in
/// kFurther only, which goes into the instruction.
template <class P, int kFurther, class Context, class F>
ARK_DEVICE void at_element(const Context& c, const i32 (&row)[P::kDims], i64 first, F&& f) {
  i32 x[P::kDims];
  if constexpr (P::kReduceDims == 1) {
    row_coordinates<P>(c, row, first, x);
    f(c.behind(kFurther), x);
  } else {
    row_coordinates<P>(c, row, first + kFurther, x);
    f(c, x);
  }
}

}  // namespace ark::device
