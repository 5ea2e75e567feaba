// kRowSelect: the histogram of a part of a row, in shared memory. It lies there four times, for every fourth lane: lanes
// of a warp that have the same bin meet in four banks. Sums are of integers: any order gives the same bits. Masses of a
// whole row may take more than 32 bits: rounds behind the first have half the bins, whose carries the others count.
#pragma once
#include "device/program/row_select_digit.cuh"
#include "device/program/support.cuh"

namespace ark::device {

struct SelectHistogram {
  static constexpr int kCopies = 4, kOwnGroups = abi::kSelectGroups / kConsumerWarps;
  using Bins = Vec<u32, kCopies>[abi::kSelectBins];

  const Consumer& consumer;
  Bins& bins;

  /// A warp clears the bins that it will sum up, and reads no others there.
  ARK_DEVICE void clear() const {
#pragma unroll
    for (int i = 0; i < kOwnGroups; ++i) bins[own_bin(i)] = {};
  }

  /// Those of four elements that are `there`. All weights come before the first addition, which is behind a branch.
  template <bool kMass, bool kCarries>
  ARK_DEVICE void add(const Vec<float, 4>& x, const bool (&there)[4], u32 found, int round) const {
    const int shift = abi::select_shift(round), above = abi::select_shift(round - 1);
    u32 weight[4], bin[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float distance = x.v[i];
      const u32 n = select_steps(distance), rest = n & ((1u << above) - 1);
      bin[i] = rest >> shift;
      bool counts = there[i] && (n ^ rest) == found;
      weight[i] = 1;
      if constexpr (kMass) {
        counts = counts && distance < abi::kSelectMassless;  // no NaN is
        weight[i] = weight_of(distance, round == 0 ? n & ~0u << shift : found);
      }
      if (!counts) weight[i] = 0;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (weight[i] == 0) continue;
      const int copy = consumer.lane() % kCopies;
      const u32 before = atomicAdd(&bins[bin[i]].v[copy], kMass ? weight[i] : 1u);
      if (kMass && kCarries && before > ~weight[i]) atomicAdd(&bins[SelectDigit::kCarries + bin[i]].v[copy], 1u);
    }
  }
  /// Neighbours, of which the first `left` are there.
  template <bool kMass, bool kCarries>
  ARK_DEVICE void add(const Vec<float, 4>& x, int left, u32 found, int round) const {
    const bool there[] = {left > 0, left > 1, left > 2, left > 3};
    add<kMass, kCarries>(x, there, found, round);
  }

  /// The sums of the bins, and of groups of 32 of them. A bin's units of mass in round 0 are those of its own low end, a
  /// group's those of its first bin.
  ARK_DEVICE void store(SelectSums* to, int round, bool by_mass) const {
    constexpr float kOne = 1 << 24;
    constexpr int kLow = 26;
    const bool falls = by_mass && round == 0;
    const u64 in_group = falls ? __float2uint_rn(op::exp_fast(consumer.lane() * -0.0625f) * kOne) : 1;
    u64 sums[kOwnGroups];
#pragma unroll
    for (int i = 0; i < kOwnGroups; ++i) {
      const Vec<u32, kCopies> copies = bins[own_bin(i)];
      sums[i] = u64{copies.v[0]} + copies.v[1] + copies.v[2] + copies.v[3];
    }
#pragma unroll
    for (int i = 0; i < kOwnGroups / 2 && round > 0; ++i) {
      sums[i] += sums[i + kOwnGroups / 2] << 32;
      sums[i + kOwnGroups / 2] = sums[i] >> 32;
    }
#pragma unroll
    for (int i = 0; i < kOwnGroups; ++i) {
      const u64 share = sums[i] * in_group;  // all of a group: below 2^56
      const u32 low = __reduce_add_sync(~0u, static_cast<u32>(share) & ((1u << kLow) - 1));
      const u32 high = __reduce_add_sync(~0u, static_cast<u32>(share >> kLow));
      const u64 group = (static_cast<u64>(high) << kLow) + low;
      to->bins[own_bin(i)] = static_cast<u32>(sums[i]);
      if (consumer.lane() == 0) to->groups[own_bin(i) / 32] = static_cast<float>(group) * (falls ? 1 / kOne : 1.0f);
    }
  }

 private:
  /// A warp's groups are of both halves: bins, and their carries.
  ARK_DEVICE int own_bin(int i) const {
    constexpr int kHalf = kOwnGroups / 2;
    return (i / kHalf * (abi::kSelectGroups / 2) + consumer.warp() * kHalf + i % kHalf) * 32 + consumer.lane();
  }

  /// Relative to what is `low` steps away; at least one unit, so that a tail of next to nothings is not lost.
  static ARK_DEVICE u32 weight_of(float distance, u32 low) {
    constexpr float kUnits = 1 << abi::kSelectMassBits;
    const float behind = fmaxf(distance - static_cast<float>(low) * (1 / abi::kSelectSteps), 0.0f);
    return max(__float2uint_rn(op::exp_fast(-behind) * kUnits), 1u);
  }
};

}  // namespace ark::device
