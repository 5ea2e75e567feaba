// kRowSelect: a digit of the answer, chosen from the sums of all parts of a row: first among the 32 groups of bins,
// then among the 32 bins of that group. A lane has a bin, and every warp does the same, so that no warp waits for
// another's choice. Whoever chooses from the same sums gets the same bits: sums are of integers, or have one order.
#pragma once
#include "device/program/support.cuh"

namespace ark::device {

/// How far a select has come.
struct SelectState {
  u32 found = 0;       // the bits so far
  double outside = 0;  // elements before what they leave; the mass behind it
  double limit = 0;    // fewer elements than that; more mass than that
};

/// One of the two is asked for, and loaded ahead.
struct SelectBound {
  float share = 0;
  i64 count = 0;
};

/// A part's sums as they lie in memory.
struct SelectSums {
  float groups[abi::kSelectGroups];
  u32 bins[abi::kSelectBins];
};
static_assert(sizeof(SelectSums) == abi::kSelectWords * 4 && abi::kSelectBins == 32 * abi::kSelectGroups);

struct SelectDigit {
  using X = abi::RowSelectOperand;
  static constexpr int kVectors = 8;  // of four, in 32 sums
  static constexpr int kTogether = kConsumerThreads / kVectors, kAhead = 4;

  // What sums of all parts are kept in. Floats hold numbers of elements exactly.
  static_assert(abi::kSelectMost <= 1 << 24);
  static ARK_DEVICE float wide(float x) { return x; }
  static ARK_DEVICE u64 wide(u32 x) { return x; }

  struct Scratch {
    float groups[kConsumerWarps][32];  // of a warp's parts
    u64 bins[kConsumerWarps][32];
    SelectSums own;  // of a row that has one part
  };

  const Consumer& consumer;
  const Task& task;
  const abi::RowSelectParams& p;
  Scratch& s;
  int row;
  const SelectBound& bound;

  /// The digit of `round`.
  ARK_DEVICE void choose(int round, SelectState& state) const {
    const int shift = abi::select_shift(round), bins = 1 << (abi::select_shift(round - 1) - shift);
    const u32 low = state.found;
    double scale = 1;  // of the lane's sum
    const auto scale_for = [&](int at) {
      if (p.by_mass != 0) scale = mass_at(round == 0 ? state.found | static_cast<u32>(lane_bin()) << at : low);
    };
    const double of_group = sum<float>(0, s.groups, [&] { scale_for(shift + 5); });
    const u32 group = pick(of_group * scale, bins / 32, round == 0, state);
    state.found |= group << (shift + 5);
    const double of_bin = sum<u32>(abi::kSelectGroups + group * 32, s.bins, [&] { scale_for(shift); });
    state.found |= pick(of_bin * scale, 32, false, state) << shift;
  }

 private:
  /// Which of the 32 the lane has: masses add up from behind.
  ARK_DEVICE int lane_bin() const { return p.by_mass != 0 ? 31 - consumer.lane() : consumer.lane(); }

  /// The lane's one of 32 neighbouring sums, of all parts together, by way of `between` the warps. `meanwhile` is
  /// called first: what it computes is not needed before the loads are there.
  template <class T, class W, class F>
  ARK_DEVICE double sum(int first, W (&between)[kConsumerWarps][32], const F& meanwhile) const {
    meanwhile();
    if (p.parts == 1) return static_cast<double>(reinterpret_cast<const T*>(&s.own)[first + lane_bin()]);
    const abi::Operand& x = task.operand(X::kSumsBefore);
    const T* from =
        task.address<const T>(X::kSumsBefore) + row * x.stride[0] + first + consumer.thread() % kVectors * 4;
    W sums[4] = {};
#pragma unroll 1
    for (int part = consumer.thread() / kVectors; part < p.parts; part += kAhead * kTogether) {
      Vec<T, 4> v[kAhead] = {};
#pragma unroll
      for (int k = 0; k < kAhead; ++k)
        if (part + k * kTogether < p.parts) load_vector(from + (part + k * kTogether) * x.stride[1], v[k]);
#pragma unroll
      for (int k = 0; k < kAhead; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[i] += wide(v[k].v[i]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums[i] += __shfl_xor_sync(~0u, sums[i], 8);
      sums[i] += __shfl_xor_sync(~0u, sums[i], 16);
      if (consumer.lane() < kVectors) between[consumer.warp()][consumer.lane() * 4 + i] = sums[i];
    }
    consumer.sync();
    W all = 0;
#pragma unroll
    for (int w = 0; w < kConsumerWarps; ++w) all += between[w][lane_bin()];
    return static_cast<double>(all);
  }

  /// The last of `bins` that fits; what is outside of it goes to the state. `through`: the lane's sum.
  ARK_DEVICE u32 pick(double through, int bins, bool begins, SelectState& state) const {
    const bool by_mass = p.by_mass != 0;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const double other = __shfl_up_sync(~0u, through, distance);
      if (consumer.lane() >= distance) through += other;
    }
    double before = __shfl_up_sync(~0u, through, 1);
    if (consumer.lane() == 0) before = 0;
    const double all = __shfl_sync(~0u, through, 31);
    if (begins)
      state.limit =
          by_mass ? max(static_cast<double>(bound.share), 0.0) * all : static_cast<double>(max(bound.count, i64{0}));
    const bool fits = by_mass ? state.outside + through > state.limit : state.outside + before < state.limit;
    const u32 fitting = __ballot_sync(~0u, fits && lane_bin() < bins);
    int lane = by_mass ? 31 : 0;
    if (fitting != 0) lane = by_mass ? __ffs(fitting) - 1 : 31 - __clz(fitting);
    state.outside += __shfl_sync(~0u, before, lane);
    return static_cast<u32>(by_mass ? 31 - lane : lane);
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
