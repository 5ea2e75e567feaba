// kRowSelect, kRowDraw: masses as integers, so that their order does not matter, and the select by them of a row that
// one tile looks at, a digit at a time.
#pragma once
#include "device/program/row_select_histogram.cuh"
#include "device/program/support.cuh"

namespace ark::device {

struct SelectMasses {
  static constexpr u32 kFarthest = abi::kSelectFarthest - 1;  // that has a mass
  struct Scratch {
    u64 bins[abi::kSelectBins];
    u64 groups[32];  // of 32 bins each
  };

  const Consumer& consumer;
  Scratch& s;

  ARK_DEVICE void clear() const {
    for (u32 i = consumer.thread(); i < abi::kSelectBins; i += kConsumerThreads) s.bins[i] = 0;
    consumer.sync();
  }
  /// Elements with the bits above, of which the first `left` are there, no farther than `kept`. Lanes that have the
  /// same steps add them up first: a row of equals is one address.
  ARK_DEVICE void weigh(const Vec<float, 4>& x, int left, const SelectRange& range, u32 kept) const {
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
      const float distance = i == 0 ? x.v[0] : i == 1 ? x.v[1] : i == 2 ? x.v[2] : x.v[3];
      const u32 n = SelectHistogram::steps(distance), rest = n & ((1u << range.above) - 1);
      if (i >= left || n > kept || n > kFarthest || (n ^ rest) != range.found) continue;
      const u32 same = __match_any_sync(__activemask(), n);
      if (__ffs(same) - 1 == consumer.lane())
        atomicAdd(&s.bins[rest >> range.shift], mass_of(n) * static_cast<u32>(__popc(same)));
    }
  }
  /// For all threads. `behind`: the mass behind the bins; `all` is found with the first digit.
  ARK_DEVICE u32 digit(float share, bool first, u64& all, u64& behind) const {
    consumer.sync();
#pragma unroll 1
    for (int i = consumer.warp(); i < 32; i += kConsumerWarps) {
      u64 sum = s.bins[i * 32 + consumer.lane()];
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) sum += __shfl_xor_sync(~0u, sum, distance);
      if (consumer.lane() == 0) s.groups[i] = sum;
    }
    consumer.sync();
    if (first) {
      all = 0;
#pragma unroll 1
      for (int i = 0; i < 32; ++i) all += s.groups[i];
    }
    u32 bin = 31;
#pragma unroll 1
    for (; bin > 0 && !exceeds(behind + s.groups[bin], share, all); --bin) behind += s.groups[bin];
    const u32 end = bin * 32;
#pragma unroll 1
    for (bin = end + 31; bin > end && !exceeds(behind + s.bins[bin], share, all); --bin) behind += s.bins[bin];
    consumer.sync();
    return bin;
  }

  /// What is farther than kFarthest has none.
  static ARK_DEVICE u64 mass_of(u32 steps) {
    return max(__float2ull_rn(op::exp_fast(static_cast<float>(steps) * (-1 / abi::kSelectSteps)) * kUnits), u64{1});
  }
  static ARK_DEVICE bool exceeds(u64 mass, float share, u64 all) {
    return static_cast<double>(mass) > static_cast<double>(fmaxf(share, 0.0f)) * static_cast<double>(all);
  }

 private:
  static constexpr float kUnits = 1ull << 40;  // of the nearest one's mass: fewer than 2^23 of it, or next to nothing
  static_assert(abi::kSelectMost <= 1 << 22);
};

}  // namespace ark::device
