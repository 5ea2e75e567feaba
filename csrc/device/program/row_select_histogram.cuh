// kRowSelect: the histogram of a part of a row, in shared memory. It lies there four times, for every fourth lane:
// lanes of a warp that have the same bin meet in four banks. Sums are of integers: any order gives the same bits.
#pragma once
#include "device/program/row_select_digit.cuh"
#include "device/program/support.cuh"

namespace ark::device {

/// A round's digit is bits [shift, above); those above it have been found.
struct SelectRange {
  int shift, above;
  u32 found;
  bool marks;    // what the bits below `shift` are is noted as well
  bool by_mass;  // only what has a mass counts
};

struct SelectHistogram {
  static constexpr int kCopies = 4, kOwnGroups = abi::kSelectGroups / kConsumerWarps;
  using Bins = Vec<u32, kCopies>[abi::kSelectBins];

  const Consumer& consumer;
  Bins& bins;
  u32 (&seen)[abi::kSelectBins];  // marks, where they are made

  /// A warp clears the bins that it will sum up, and reads no others there.
  ARK_DEVICE void clear(bool marks) const {
#pragma unroll
    for (int i = 0; i < kOwnGroups; ++i) bins[own_bin(i)] = {};
    if (!marks) return;
#pragma unroll
    for (int i = 0; i < kOwnGroups; ++i) seen[own_bin(i)] = 0;
  }

  /// Neighbours of which the first `left` are there. All weights come before the first addition, which is behind a
  /// branch. `kOnes`: elements are counted whose masses have been.
  template <bool kMass, bool kOnes = false>
  ARK_DEVICE void add(const Vec<float, 4>& x, int left, const SelectRange& range) const {
    const auto [shift, above, found, marks, by_mass] = range;
    u32 weight[4], bin[4], low[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float distance = x.v[i];
      const u32 n = steps(distance), rest = n & ((1u << above) - 1);
      bin[i] = rest >> shift;
      low[i] = rest & kLow;
      bool counts = i < left && (n ^ rest) == found;
      weight[i] = 1;
      if (kMass || (kOnes && by_mass)) counts = counts && distance < abi::kSelectMassless;  // no NaN is
      if constexpr (kMass) {
        weight[i] = weight_of(distance, above == abi::kSelectBits ? n & ~0u << shift : found);
      }
      if (!counts) weight[i] = 0;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (weight[i] != 0) {
        atomicAdd(&bins[bin[i]].v[consumer.lane() % kCopies], kMass ? weight[i] : 1u);
        if (marks) atomicOr(&seen[bin[i]], low[i] | (low[i] ^ kLow) << abi::kSelectMarkBits);
      }
  }

  /// The sums of the bins, and of groups of 32 of them. `falls`: a bin's units are those of its own low end, a group's
  /// those of its first bin.
  ARK_DEVICE void store(SelectSums* to, bool falls) const {
    constexpr int kOne = 24, kLow = 26;
    const u64 in_group = __float2uint_rn((falls ? op::exp_fast(consumer.lane() * -0.0625f) : 1.0f) * (1 << kOne));
#pragma unroll
    for (int i = 0; i < kOwnGroups; ++i) {
      const Vec<u32, kCopies> copies = bins[own_bin(i)];
      const u32 bin = copies.v[0] + copies.v[1] + copies.v[2] + copies.v[3];
      const u64 share = bin * in_group;  // all of a group: below 2^56
      const u32 low = __reduce_add_sync(~0u, static_cast<u32>(share) & ((1u << kLow) - 1));
      const u32 high = __reduce_add_sync(~0u, static_cast<u32>(share >> kLow));
      const u64 group = (static_cast<u64>(high) << kLow) + low;
      to->bins[own_bin(i)] = bin;
      if (consumer.lane() == 0)
        to->groups[consumer.warp() * kOwnGroups + i] = static_cast<float>(group) * (1.0f / (1 << kOne));
    }
  }

  /// Of round kSelectLast - 1.
  ARK_DEVICE void store_marks(u32* to) const {
#pragma unroll
    for (int i = 0; i < kOwnGroups; ++i) to[own_bin(i)] = seen[own_bin(i)];
  }

  static ARK_DEVICE u32 steps(float distance) {  // NaN: fminf takes the other
    return __float2uint_rz(fminf(distance * abi::kSelectSteps, static_cast<float>(abi::kSelectFarthest)));
  }

 private:
  static constexpr u32 kLow = (1u << abi::kSelectMarkBits) - 1;
  static_assert(abi::select_shift(abi::kSelectLast - 1) == abi::kSelectMarkBits);

  ARK_DEVICE int own_bin(int i) const { return (consumer.warp() * kOwnGroups + i) * 32 + consumer.lane(); }

  /// Relative to what is `low` steps away; at least one unit, so that a tail of next to nothings is not lost.
  static ARK_DEVICE u32 weight_of(float distance, u32 low) {
    constexpr float kUnits = 1 << abi::kSelectMassBits;
    const float behind = fmaxf(distance - static_cast<float>(low) * (1 / abi::kSelectSteps), 0.0f);
    return max(__float2uint_rn(op::exp_fast(-behind) * kUnits), 1u);
  }
};

}  // namespace ark::device
