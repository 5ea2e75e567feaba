// kRowDraw, stage 2: the first candidate that the share keeps; or, where none is, what is drawn from the whole row.
#pragma once
#include "device/program/row_draw_row.cuh"
#include "device/program/row_select_masses.cuh"

namespace ark::device {

struct DrawChoice {
  using X = abi::RowDrawOperand;
  static constexpr int kWords = abi::kDrawWords;
  static_assert(2 * kWords == 32);

  /// What a warp has found.
  struct Found {
    u32 key, place;
  };
  struct Scratch {
    union {
      u64 sums[kConsumerWarps][kWords];
      SelectMasses::Scratch masses;
    };
    Found of_warps[kConsumerWarps];
    u32 tops[kConsumerWarps];
    u32 found;  // a key
  };

  const DrawRow& row;
  Scratch& s;

  ARK_DEVICE void run() const {
    const float share = row.share();
    if (row.p.parts > 1 && choose(share)) return;
    row.consumer.sync();
    draw(share);
  }

 private:
  ARK_DEVICE int lane() const { return row.consumer.lane(); }
  ARK_DEVICE int warp() const { return row.consumer.warp(); }

  /// Candidate i is behind masses i; the first word of candidates is none, nor is one without a mass.
  ARK_DEVICE bool choose(float share) const {
    const u64* masses = row.address<const u64>(X::kMassesBefore);
    const int word = lane() % kWords;
    const u64 candidate = load_element(masses + kWords + word);
    const u64 sum = sum_of(masses + word);
    if (lane() < kWords) s.sums[warp()][lane()] = sum;
    row.consumer.sync();
    if (warp() == 0) {
      u64 behind = 0;
#pragma unroll
      for (int w = 0; w < kConsumerWarps; ++w) behind += s.sums[w][word];
      const u64 all = __shfl_sync(~0u, behind, 0);
      // what is as near as can be stays, whatever the share
      const bool kept = word > 0 && (behind == all || SelectMasses::exceeds(behind, share, all));
      const u32 key = kept ? static_cast<u32>(candidate >> 32) : 0;
      const Found found = best_of_warp({key, static_cast<u32>(candidate)});
      if (lane() == 0) s.found = found.key;
      if (lane() == 0 && found.key != 0) store(found);
    }
    row.consumer.sync();
    return s.found != 0;
  }

  /// Of all parts; a warp takes two of them at a time.
  ARK_DEVICE u64 sum_of(const u64* masses) const {
    constexpr int kAhead = 8, kStep = kConsumerThreads / kWords;
    u64 sum = 0;
#pragma unroll 1
    for (int first = row.consumer.thread() / kWords; first < row.p.parts; first += kAhead * kStep) {
      u64 v[kAhead] = {};
#pragma unroll
      for (int k = 0; k < kAhead; ++k)
        if (const int part = first + k * kStep; part < row.p.parts)
          v[k] = load_element(masses + part * abi::kDrawMassWords);
#pragma unroll
      for (int k = 0; k < kAhead; ++k) sum += v[k];
    }
    return sum + __shfl_xor_sync(~0u, sum, kWords);
  }

  static ARK_DEVICE bool is_better(const Found& a, const Found& b) {
    return a.key > b.key || (a.key == b.key && a.place < b.place);
  }
  static ARK_DEVICE Found best_of_warp(const Found& own) {
    const u32 key = __reduce_max_sync(~0u, own.key);
    return {key, __reduce_min_sync(~0u, own.key == key ? own.place : ~0u)};
  }

  ARK_DEVICE void store(const Found& found) const {
    store_element(row.address<i64>(X::kToken), i64{found.place});
    store_element(row.address<float>(X::kBest), draw_number(found.key));
  }

  /// The row's largest, what is kept of the row, and the best of that.
  ARK_DEVICE void draw(float share) const {
    const u32 top = largest();
    const u32 last = draw_finite(top) ? farthest_kept(draw_number(top), share) : 0;
    DrawRow::Ahead x = {};
    Found own{0, ~0u};
    row.each<true>(x, false, [&](const DrawRow::Four& four, int at, int left) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float value = four.value.v[i];
        u32 key = draw_key(value);
        if (draw_finite(top))
          key = SelectHistogram::steps(draw_number(top) - value) <= last ? draw_key(value + four.noise.v[i]) : 0;
        else if (key != top)
          key = 0;
        if (i < left && key > own.key) own = {key, static_cast<u32>(at + i)};
      }
    });
    own = best_of_warp(own);
    if (lane() == 0) s.of_warps[warp()] = own;
    row.consumer.sync();
    if (row.consumer.thread() != 0) return;
#pragma unroll 1
    for (int w = 0; w < kConsumerWarps; ++w)
      if (is_better(s.of_warps[w], own)) own = s.of_warps[w];
    store(own);
  }

  ARK_DEVICE u32 largest() const {
    DrawRow::Ahead x = {};
    u32 top = 0;
    row.each<false>(x, false, [&](const DrawRow::Four& four, int, int left) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (i < left) top = max(top, draw_key(four.value.v[i]));
    });
    top = __reduce_max_sync(~0u, top);
    if (lane() == 0) s.tops[warp()] = top;
    row.consumer.sync();
#pragma unroll
    for (int w = 0; w < kConsumerWarps; ++w) top = max(top, s.tops[w]);
    return top;
  }

  ARK_DEVICE u32 farthest_kept(float top, float share) const {
    const SelectMasses masses{row.consumer, s.masses};
    u64 all = 0, behind = 0;
    u32 found = 0;
#pragma unroll 1
    for (int round = 0; round < abi::kSelectRounds; ++round) {
      const SelectRange range = {abi::select_shift(round), abi::select_shift(round - 1), found, false, true};
      DrawRow::Ahead x = {};
      masses.clear();
      row.each<false>(x, false, [&](const DrawRow::Four& four, int, int left) {
        Vec<float, 4> distance;
#pragma unroll
        for (int i = 0; i < 4; ++i) distance.v[i] = top - four.value.v[i];
        masses.weigh(distance, left, range, SelectMasses::kFarthest);
      });
      found |= masses.digit(share, round == 0, all, behind) << range.shift;
    }
    return found;
  }
};

}  // namespace ark::device
