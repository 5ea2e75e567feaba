// kRowDraw, stages 0 and 1: each part lists its best; and the candidates of a row, out of the lists of its parts, with
// what the part's own elements weigh that are as far. All tiles of a row find the same candidates.
//
// A candidate's key is greater than that of all elements that are none, so whichever candidate of the greatest key is
// kept, is what is drawn.
#pragma once
#include "device/program/row_draw_best.cuh"
#include "device/program/row_select_masses.cuh"

namespace ark::device {

struct DrawCandidates {
  using X = abi::RowDrawOperand;
  static constexpr int kListed = abi::kDrawListed, kMost = abi::kDrawWords, kSums = kConsumerWarps;
  static_assert(abi::kDrawListWords == kConsumerWarps * kListed * 4 && abi::kDrawFewWords == kSums);

  struct Scratch {
    DrawEntry of_warps[kConsumerWarps * kMost];
    DrawEntry of_row[kConsumerWarps][kMost];  // each warp finds them
    u64 sums[kSums][kConsumerThreads];
  };
  static_assert(sizeof(Scratch) <= kScratchBytes);

  const DrawRow& row;
  Scratch& s;

  ARK_DEVICE void run() const {
    const int lane = row.consumer.lane(), warp = row.consumer.warp();
    DrawRow::Ahead x = {};
    DrawBest best;
    int words = 0, count = kListed;
    DrawEntry* to;
    if (row.p.stage == 0) {
      add_elements(x, best);
      to = reinterpret_cast<DrawEntry*>(row.address_of_part<u32>(X::kLists)) + warp * kListed;
    } else {
      row.load<false>(row.begin, x);
      const float share = row.share();
      add_lists(best);
      words = row.words(share);
      to = s.of_warps + warp * words, count = words;
    }
#pragma unroll 1
    for (;;) {  // one piece of code lists what has been added, whichever it is
      best.list(lane, to, count);
      if (row.p.stage == 0) return;
      if (count < words) break;
      row.consumer.sync();
      best = {};
#pragma unroll 1
      for (int i = lane; i < kConsumerWarps * words; i += 32) best.add(s.of_warps[i], i, words);
      to = s.of_row[warp], count = words - 1;  // the first word is for all elements
    }
    __syncwarp();
    weigh(x, draw_number(best.top), candidate(best, words), words);
  }

 private:
  ARK_DEVICE void add_elements(DrawRow::Ahead& x, DrawBest& best) const {
    row.each_element<true>(x, false, [&](float value, float noise, int place) {
      best.top = max(best.top, draw_key(value));
      best.add(draw_key(value + noise), __float_as_uint(value), place);
    });
  }

  ARK_DEVICE void add_lists(DrawBest& best) const {
    constexpr int kAhead = 4;
    const u32* from = row.address<const u32>(X::kListsBefore);
    const int count = row.p.parts * kConsumerWarps * kListed;  // parts lie side by side
#pragma unroll 1
    for (int first = row.consumer.thread(); first < count; first += kAhead * kConsumerThreads) {
      DrawEntry v[kAhead] = {};
#pragma unroll
      for (int k = 0; k < kAhead; ++k)
        if (const int at = first + k * kConsumerThreads; at < count) load_vector(from + at * 4, v[k]);
#pragma unroll
      for (int k = 0; k < kAhead; ++k) best.add(v[k], first, kListed);
    }
  }

  /// How far the lane's candidate is; the first lane's is as near as can be. The first part's tile hands them on.
  ARK_DEVICE u32 candidate(const DrawBest& best, int words) const {
    const int lane = row.consumer.lane();
    if (lane == 0) return 0;
    u32 steps = abi::kSelectFarthest;
    u64 known = 0;
    if (lane < words && draw_finite(best.top)) {
      const DrawEntry x = s.of_row[row.consumer.warp()][lane - 1];
      if (x.v[0] > best.bound) {
        steps = SelectHistogram::steps(draw_number(best.top) - __uint_as_float(x.v[1]));
        known = static_cast<u64>(x.v[0]) << 32 | x.v[2];
      }
    }
    if (row.part == 0 && row.consumer.warp() == 0 && lane < kMost)
      store_element(row.address<u64>(X::kMasses) + kMost + lane, known);
    return steps;
  }

  /// What is as far as each candidate or farther, for a candidate of each warp at a time.
  ARK_DEVICE void weigh(DrawRow::Ahead& x, float top, u32 steps, int words) const {
    const int lane = row.consumer.lane(), warp = row.consumer.warp();
#pragma unroll 1
    for (int first = 0;;) {
      u32 from[kSums];
      u64 sums[kSums] = {};
#pragma unroll
      for (int i = 0; i < kSums; ++i) from[i] = __shfl_sync(~0u, steps, first + i);
      row.each_element<false>(x, first == 0, [&](float value, float, int) {
        const u32 n = SelectHistogram::steps(top - value);
        const u64 mass = n <= SelectMasses::kFarthest ? SelectMasses::mass_of(n) : 0;
#pragma unroll
        for (int i = 0; i < kSums; ++i)
          if (n >= from[i]) sums[i] += mass;
      });
#pragma unroll
      for (int i = 0; i < kSums; ++i) s.sums[i][row.consumer.thread()] = sums[i];
      row.consumer.sync();
      u64 sum = 0;
#pragma unroll
      for (int i = 0; i < kConsumerThreads; i += 32) sum += s.sums[warp][i + lane];
#pragma unroll 1
      for (int distance = 1; distance < 32; distance *= 2) sum += __shfl_xor_sync(~0u, sum, distance);
      if (lane == 0) store_element(row.address_of_part<u64>(X::kMasses) + first + warp, sum);
      if ((first += kSums) == words) return;
      row.consumer.sync();
    }
  }
};

}  // namespace ark::device
