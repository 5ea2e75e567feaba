// kRowDraw, stage 0: the few elements of a part whose sum with the noise is largest. A thread keeps its two best, a
// warp lists those of its threads, and the lists of the warps become one by comparing all with all. Whatever is left
// out on the way is noted by its key, so that the list says what it may lack.
#pragma once
#include "device/program/row_draw_row.cuh"

namespace ark::device {

struct DrawLists {
  static constexpr int kListed = abi::kDrawListed, kAll = kConsumerWarps * kListed;
  static_assert(kAll <= kConsumerThreads && abi::kDrawTopWord == 3 * kListed);

  struct Scratch {
    Vec<u32, 4> keys[kAll / 4];
    u32 values[kAll], places[kAll];
    u32 tops[kConsumerWarps], bounds[kConsumerWarps];
  };
  struct Element {
    u32 key = 0, value = 0, place = 0;  // of the sum; bits
  };
  struct Best {
    Element first, second;
    u32 left_out = 0, top = 0;  // keys; the top is of values

    ARK_DEVICE void add(const Element& x) {
      const bool is_first = x.key > first.key, is_second = x.key > second.key;
      left_out = is_second ? second.key : max(left_out, x.key);
      if (is_second) second = x;
      if (is_first) second = first, first = x;
    }
  };

  const DrawRow& row;
  Scratch& s;

  ARK_DEVICE void run() const {
    DrawRow::Ahead x = {};
    Best best;
    row.each<true>(x, false, [&](const DrawRow::Four& four, int at, int left) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i >= left) continue;
        const float value = four.value.v[i];
        best.top = max(best.top, draw_key(value));
        best.add({draw_key(value + four.noise.v[i]), __float_as_uint(value), static_cast<u32>(at + i)});
      }
    });
    list(best);
    row.consumer.sync();
    join();
  }

 private:
  /// The warp's.
  ARK_DEVICE void list(Best& best) const {
    const int warp = row.consumer.warp(), lane = row.consumer.lane();
#pragma unroll 1
    for (int i = 0; i < kListed; ++i) {
      const u32 most = __reduce_max_sync(~0u, best.first.key);
      if (__ffs(__ballot_sync(~0u, best.first.key == most)) - 1 != lane) continue;
      const int at = warp * kListed + i;
      reinterpret_cast<u32*>(s.keys)[at] = best.first.key;
      s.values[at] = best.first.value, s.places[at] = best.first.place;
      best.first = best.second, best.second.key = 0;
    }
    const u32 bound = __reduce_max_sync(~0u, max(best.left_out, best.first.key));
    const u32 top = __reduce_max_sync(~0u, best.top);
    if (lane == 0) s.bounds[warp] = bound, s.tops[warp] = top;
  }

  /// The part's, of those of the warps.
  ARK_DEVICE void join() const {
    const int thread = row.consumer.thread();
    if (thread >= kAll) return;
    const u32 own = reinterpret_cast<const u32*>(s.keys)[thread];
    int better = 0;
#pragma unroll 1
    for (int i = 0; i < kAll; i += 4) {
      const Vec<u32, 4> v = s.keys[i / 4];
#pragma unroll
      for (int j = 0; j < 4; ++j) better += v.v[j] > own || (v.v[j] == own && i + j < thread);
    }
    u32* to = row.address_of_part<u32>(DrawRow::X::kLists);
    if (better < kListed) {
      store_element(to + better, own);
      store_element(to + kListed + better, s.values[thread]);
      store_element(to + 2 * kListed + better, s.places[thread]);
    }
    if (better != kListed) return;
    u32 bound = own, top = 0;
#pragma unroll
    for (int w = 0; w < kConsumerWarps; ++w) bound = max(bound, s.bounds[w]), top = max(top, s.tops[w]);
    store_element(to + abi::kDrawTopWord, top);
    store_element(to + abi::kDrawBoundWord, bound);
  }
};

}  // namespace ark::device
