// kRowDraw, stage 1: the candidates of a row, out of the lists of its parts, and what the part's own elements weigh
// between them. All tiles of a row find the same candidates, in one order: the nearest first.
//
// A candidate's key is greater than that of all elements that are not listed, and no listed element with a greater key
// is left out. So whichever candidate of the greatest key is kept, is what is drawn.
#pragma once
#include "device/program/row_draw_row.cuh"
#include "device/program/row_select_masses.cuh"

namespace ark::device {

struct DrawCandidates {
  using X = abi::RowDrawOperand;
  static constexpr int kListed = abi::kDrawListed, kMost = abi::kDrawMost, kRoom = kMost + 1;
  static constexpr int kWords = 36;    // of a list in shared memory: threads that look into one list each meet less
  static constexpr int kSample = 128;  // listed elements of which the threshold is one
  static_assert(abi::kDrawMostParts <= kSample && 2 * abi::kDrawMostParts <= kConsumerThreads && kListed == 8);
  static_assert(kRoom == 64 && kListed * kListed <= kRoom);

  struct Scratch {
    Vec<u32, 4> lists[abi::kDrawMostParts][kWords / 4];
    Vec<u32, 4> sample[kSample / 4];
    u32 steps[kRoom], keys[kRoom], places[kRoom];  // as they come
    u32 nearest[kRoom];                            // steps in order
    u64 masses[kRoom];
    u32 thresholds[2], counts[2], count;
  };
  static_assert(sizeof(Scratch) <= kScratchBytes);

  const DrawRow& row;
  Scratch& s;

  ARK_DEVICE void run() const {
    DrawRow::Ahead x = {};
    row.load<false>(row.begin, x);
    const float share = row.share();
    clear();
    read_lists();
    row.consumer.sync();
    u32 top, bound;
    read_bounds(top, bound);
    take_sample();
    row.consumer.sync();
    rank_sample(share > 0.5f ? abi::kDrawMany : abi::kDrawFew);
    row.consumer.sync();
    if (draw_finite(top)) collect(top, bound);
    row.consumer.sync();
    const u32 count = s.count;
    put_in_order(count);
    if (count == 0) return;
    row.consumer.sync();
    weigh(x, draw_number(top), count);
    row.consumer.sync();
    u64* to = row.address_of_part<u64>(X::kMasses);
    const u32 thread = row.consumer.thread();
    if (thread <= (count | 1)) store_element(to + thread, s.masses[thread]);  // by twos, as they are read
  }

 private:
  ARK_DEVICE void clear() const {
    const int thread = row.consumer.thread();
    if (thread < kSample) reinterpret_cast<u32*>(s.sample)[thread] = 0;
    if (thread < kRoom) s.nearest[thread] = ~0u, s.masses[thread] = 0;
    if (thread < 2) s.thresholds[thread] = 0, s.counts[thread] = 0;
    if (thread == 0) s.count = 0;
  }

  ARK_DEVICE void read_lists() const {
    constexpr int kVectors = 8, kUsed = 7, kAhead = 4;  // of a list
    const u32* from = row.address<const u32>(X::kListsBefore);
    const i64 stride = row.task.operand(X::kListsBefore).stride[1];
    const int vector = row.consumer.thread() % kVectors;
    constexpr int kAtOnce = kConsumerThreads / kVectors;
#pragma unroll 1
    for (int first = row.consumer.thread() / kVectors; first < row.p.parts; first += kAhead * kAtOnce) {
      Vec<u32, 4> v[kAhead] = {};
#pragma unroll
      for (int k = 0; k < kAhead; ++k)
        if (const int part = first + k * kAtOnce; part < row.p.parts && vector < kUsed)
          load_vector(from + part * stride + vector * 4, v[k]);
#pragma unroll
      for (int k = 0; k < kAhead; ++k)
        if (const int part = first + k * kAtOnce; part < row.p.parts) s.lists[part][vector] = v[k];
    }
  }
  ARK_DEVICE u32 word(int part, int at) const { return reinterpret_cast<const u32*>(s.lists[part])[at]; }

  /// Keys of the row's largest value, and of what nothing exceeds that is not listed; every warp the same.
  ARK_DEVICE void read_bounds(u32& top, u32& bound) const {
    top = 0, bound = 0;
#pragma unroll 1
    for (int part = row.consumer.lane(); part < row.p.parts; part += 32) {
      top = max(top, word(part, abi::kDrawTopWord));
      bound = max(bound, word(part, abi::kDrawBoundWord));
    }
    top = __reduce_max_sync(~0u, top);
    bound = __reduce_max_sync(~0u, bound);
  }

  /// The best of each part, and the next ones of each where there are few parts.
  ARK_DEVICE int sample_size() const { return min(kSample / row.p.parts, kListed) * row.p.parts; }
  ARK_DEVICE void take_sample() const {
    const int thread = row.consumer.thread();
    if (thread < sample_size())
      reinterpret_cast<u32*>(s.sample)[thread] = word(thread % row.p.parts, thread / row.p.parts);
  }
  /// Thresholds: the key of that rank in the sample, and one that few elements reach; 0 where it has none.
  ARK_DEVICE void rank_sample(int rank) const {
    const int thread = row.consumer.thread(), size = sample_size();
    if (thread >= size) return;
    const u32 own = reinterpret_cast<const u32*>(s.sample)[thread];
    int better = 0;
#pragma unroll 1
    for (int i = 0; i < size; i += 4) {
      const Vec<u32, 4> v = s.sample[i / 4];
#pragma unroll
      for (int j = 0; j < 4; ++j) better += v.v[j] > own || (v.v[j] == own && i + j < thread);
    }
    if (better == rank - 1) s.thresholds[0] = own;
    if (better == kListed - 1) s.thresholds[1] = own;
  }

  /// All listed elements that reach a threshold, as they come. None, where both let in more than there is room for.
  ARK_DEVICE void collect(u32 top, u32 bound) const {
    const int part = row.consumer.thread() / 2, half = row.consumer.thread() % 2;
    const u32 many = max(s.thresholds[0], bound + 1), few = max(s.thresholds[1], bound + 1);
    const Vec<u32, 4> keys = part < row.p.parts ? s.lists[part][half] : Vec<u32, 4>{};
    u32 of_many = 0, of_few = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) of_many += keys.v[i] >= many, of_few += keys.v[i] >= few;
    if (of_many != 0) atomicAdd(&s.counts[0], of_many);
    if (of_few != 0) atomicAdd(&s.counts[1], of_few);
    row.consumer.sync();
    const bool all = s.counts[0] <= kMost;
    if (!all && s.counts[1] > kMost) return;
    const u32 threshold = all ? many : few;
#pragma unroll 1
    for (int i = half * 4; i < half * 4 + 4 && part < row.p.parts; ++i) {
      if (word(part, i) < threshold) break;  // the others are no better
      const u32 at = atomicAdd(&s.count, 1u);
      const float distance = draw_number(top) - __uint_as_float(word(part, kListed + i));
      s.steps[at] = SelectHistogram::steps(distance);
      s.keys[at] = word(part, i), s.places[at] = word(part, 2 * kListed + i);
    }
  }

  /// The first part's tile hands them on.
  ARK_DEVICE void put_in_order(u32 count) const {
    const u32 thread = row.consumer.thread();
    u64* to = row.address_of_part<u64>(X::kMasses) + kRoom;
    if (row.part == 0 && thread == 0) store_element(to, u64{count});
    if (thread >= count) return;
    const u32 own = s.steps[thread], place = s.places[thread];
    u32 nearer = 0;
#pragma unroll 1
    for (u32 i = 0; i < count; ++i) nearer += s.steps[i] < own || (s.steps[i] == own && s.places[i] < place);
    s.nearest[nearer] = own;
    if (row.part == 0) store_element(to + 1 + nearer, u64{s.keys[thread]} << 32 | place);
  }

  /// An element's mass belongs to the last candidate that is as near or nearer. Most are behind all of them.
  ARK_DEVICE void weigh(DrawRow::Ahead& x, float top, u32 count) const {
    u64 behind = 0;
    row.each<false>(x, true, [&](const DrawRow::Four& four, int, int left) {
      u32 steps[4], before[4] = {};
#pragma unroll
      for (int i = 0; i < 4; ++i) steps[i] = SelectHistogram::steps(top - four.value.v[i]);
#pragma unroll 1
      for (u32 half = kRoom / 2; half > 0; half /= 2)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (s.nearest[before[i] + half - 1] <= steps[i]) before[i] += half;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const u64 mass = i < left && steps[i] <= SelectMasses::kFarthest ? SelectMasses::mass_of(steps[i]) : 0;
        if (before[i] == count)
          behind += mass;
        else if (mass != 0)
          atomicAdd(&s.masses[before[i]], mass);
      }
    });
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) behind += __shfl_xor_sync(~0u, behind, distance);
    if (row.consumer.lane() == 0) atomicAdd(&s.masses[count], behind);
  }
};

}  // namespace ark::device
