// kRowSelect: a digit of the answer, chosen from the sums of all parts of a row: first among the 32 groups of bins, then
// among the 32 bins of that group. A lane has a bin, and every warp does the same, so that no warp waits for another's
// choice. Whoever chooses from the same sums gets the same bits: sums are of integers, and what follows has one order.
#pragma once
#include "device/program/support.cuh"

namespace ark::device {

/// How far a select has come.
struct SelectState {
  u32 found = 0;       // the bits so far
  double outside = 0;  // elements before what they leave; the mass behind it
  double limit = 0;
};

/// A part's sums as they lie in memory.
struct SelectSums {
  u32 groups[abi::kSelectGroups];
  u32 bins[abi::kSelectBins];
};
static_assert(sizeof(SelectSums) == abi::kSelectWords * 4 && abi::kSelectBins == 32 * abi::kSelectGroups);

struct SelectDigit {
  using X = abi::RowSelectOperand;
  static constexpr int kVectors = 8;  // of four, in 32 sums
  static constexpr int kTogether = kConsumerThreads / kVectors, kAhead = 4;

  struct Scratch {
    u64 sums[2][kConsumerWarps][32];  // of a warp's parts: groups, bins
    SelectSums own;                   // of a row that has one part
  };

  const Consumer& consumer;
  const Task& task;
  const abi::RowSelectParams& p;
  Scratch& s;
  int row;

  /// The digit of `round`. `meanwhile` is called while the first loads are under way.
  template <class F>
  ARK_DEVICE void choose(int round, SelectState& state, const F& meanwhile) const {
    const int shift = abi::select_shift(round), bins = 1 << (abi::select_shift(round - 1) - shift);
    const u32 group = pick(sum(0, 0, meanwhile), round, shift + 5, bins / 32, round == 0, state);
    state.found |= group << (shift + 5);
    const u32 bin = pick(sum(1, abi::kSelectGroups + group * 32, [] {}), round, shift, 32, false, state);
    state.found |= bin << shift;
  }

 private:
  /// Which of the 32 the lane has: masses add up from behind.
  ARK_DEVICE int lane_bin() const { return p.by_mass != 0 ? 31 - consumer.lane() : consumer.lane(); }

  /// The lane's bin among 32 neighbouring words of the sums, of all parts together.
  template <class F>
  ARK_DEVICE u64 sum(int level, int first, const F& meanwhile) const {
    if (p.parts == 1) {
      meanwhile();
      return reinterpret_cast<const u32*>(&s.own)[first + lane_bin()];
    }
    const abi::Operand& x = task.operand(X::kSumsBefore);
    const u32* from =
        task.address<const u32>(X::kSumsBefore) + row * x.stride[0] + first + consumer.thread() % kVectors * 4;
    const auto load_parts = [&](int part, Vec<u32, 4>(&v)[kAhead]) {
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        v[k] = {};
        if (part + k * kTogether < p.parts) load_vector(from + (part + k * kTogether) * x.stride[1], v[k]);
      }
    };
    u64 sums[4] = {};
    int part = consumer.thread() / kVectors;
    Vec<u32, 4> v[kAhead];
    load_parts(part, v);
    meanwhile();
#pragma unroll 1
    while (true) {
#pragma unroll
      for (int k = 0; k < kAhead; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[i] += v[k].v[i];
      part += kAhead * kTogether;
      if (part >= p.parts) break;
      load_parts(part, v);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums[i] += __shfl_xor_sync(~0u, sums[i], 8);
      sums[i] += __shfl_xor_sync(~0u, sums[i], 16);
      if (consumer.lane() < kVectors) s.sums[level][consumer.warp()][consumer.lane() * 4 + i] = sums[i];
    }
    consumer.sync();
    u64 all = 0;
#pragma unroll
    for (int w = 0; w < kConsumerWarps; ++w) all += s.sums[level][w][lane_bin()];
    return all;
  }

  /// The last of `bins` that fits; what is outside of it goes to the state. A group or bin is 1 << shift steps long.
  ARK_DEVICE u32 pick(u64 sum, int round, int shift, int bins, bool begins, SelectState& state) const {
    const bool by_mass = p.by_mass != 0;
    const int bin = lane_bin();
    double through = static_cast<double>(sum);
    if (by_mass) through *= mass_at(state.found | (round == 0 ? static_cast<u32>(bin) << shift : 0u));
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const double other = __shfl_up_sync(~0u, through, distance);
      if (consumer.lane() >= distance) through += other;
    }
    double before = __shfl_up_sync(~0u, through, 1);
    if (consumer.lane() == 0) before = 0;
    if (begins) state.limit = limit(__shfl_sync(~0u, through, 31));
    const bool fits = by_mass ? state.outside + through > state.limit : state.outside + before < state.limit;
    const u32 fitting = __ballot_sync(~0u, fits && bin < bins);
    int lane = by_mass ? 31 : 0;
    if (fitting != 0) lane = by_mass ? __ffs(fitting) - 1 : 31 - __clz(fitting);
    state.outside += __shfl_sync(~0u, before, lane);
    return static_cast<u32>(by_mass ? 31 - lane : lane);
  }

  /// Fewer elements than that; more mass than that.
  ARK_DEVICE double limit(double all) const {
    const i64 at = row * task.operand(X::kBound).stride[0];
    if (p.by_mass != 0)
      return max(static_cast<double>(load_element(task.address<const float>(X::kBound) + at)), 0.0) * all;
    return static_cast<double>(max(load_element(task.address<const i64>(X::kBound) + at), i64{0}));
  }

  /// exp(-distance), so many steps away. The exponent is cut off exactly: all of float's precision is the rest's.
  static ARK_DEVICE double mass_at(u32 steps) {
    const double power = steps * (1.4426950408889634 / abi::kSelectSteps);
    const int whole = __double2int_rn(power);
    const float rest = exp2_approx(static_cast<float>(whole - power));
    return static_cast<double>(rest) * __hiloint2double((1023 - whole) << 20, 0);
  }
};

}  // namespace ark::device
