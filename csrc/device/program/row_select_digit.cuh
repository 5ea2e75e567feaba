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

/// A part's sums as they lie in memory; its marks are behind them.
struct SelectSums {
  float groups[abi::kSelectGroups];
  u32 bins[abi::kSelectBins];
};
static_assert(sizeof(SelectSums) == (abi::kSelectWords - abi::kSelectBins) * 4);
static_assert(abi::kSelectBins == 32 * abi::kSelectGroups);

/// What the bin of the last but one digit holds: marks (abi::RowSelectParams), and the elements or their mass.
struct SelectRest {
  u32 marks = 0;
  double within = 0;
};

struct SelectDigit {
  using X = abi::RowSelectOperand;
  static constexpr int kVectors = 8;  // of four, in 32 sums
  static constexpr int kTogether = kConsumerThreads / kVectors, kAhead = 4;

  struct Scratch {
    double sums[2][kConsumerWarps][32];  // of a warp's parts: bins, and groups of them
    u32 marks[kConsumerWarps][32];
    u32 some[abi::kSelectMostParts / 32];  // a bit for each part
    union {
      SelectSums own;              // of a row that has one part, or of elements that are looked at again
      u32 seen[abi::kSelectBins];  // else marks of the part
    };
  };

  const Consumer& consumer;
  const Task& task;
  const abi::RowSelectParams& p;
  Scratch& s;
  int row;
  const SelectBound& bound;
  bool whole;  // a row is one worker's

  /// The digit of `round`, from sums of all parts or of the `own` ones. After round kSelectLast - 1 of parts: the rest.
  ARK_DEVICE SelectRest choose(int round, bool own, SelectState& state) const {
    const int shift = abi::select_shift(round), bins = 1 << (abi::select_shift(round - 1) - shift);
    const bool ones = own && !whole;  // elements have been counted
    const u32 low = state.found;
    u32 digit = 0;
    SelectRest rest;
#pragma unroll 1
    for (int level = 1; level >= 0; --level) {  // groups of bins, then the bins of one
      const int at = shift + 5 * level;
      double scale = 1;  // of the lane's sum
      if (p.by_mass != 0) scale = mass_at(round == 0 || ones ? state.found | static_cast<u32>(lane_bin()) << at : low);
      if (ones && p.by_mass != 0) scale *= 1 << abi::kSelectMassBits;
      const bool marked = level == 0 && !own && round == abi::kSelectLast - 1;
      const int first = level == 1 ? 0 : abi::kSelectGroups + static_cast<int>(digit) * 32;
      rest.within = scale * (own ? own_sum(first, level) : sum(first, level, marked, rest.marks));
      digit = pick(rest.within, level == 1 ? bins / 32 : 32, level == 1 && round == 0, state);
      state.found |= digit << at;
    }
    const int lane = p.by_mass != 0 ? 31 - static_cast<int>(digit) : static_cast<int>(digit);
    return {__shfl_sync(~0u, rest.marks, lane), __shfl_sync(~0u, rest.within, lane)};
  }

  /// All elements of the bin have one last digit, or there are none.
  static ARK_DEVICE bool alike(u32 marks) { return (marks & marks >> abi::kSelectMarkBits) == 0; }
  /// What choose() would find where they are: it.
  ARK_DEVICE u32 only_digit(const SelectRest& rest, const SelectState& state) const {
    constexpr u32 kFarthest = (1u << abi::kSelectMarkBits) - 1;
    const u32 digit = rest.marks & kFarthest;
    const double with = state.outside + rest.within;
    if (p.by_mass != 0) return state.outside > state.limit ? kFarthest : with > state.limit ? digit : 0;
    return state.outside >= state.limit ? 0 : with < state.limit ? kFarthest : digit;
  }
  /// Notes which parts have something in that bin.
  ARK_DEVICE void note_parts(u32 bin) const {
    const abi::Operand& x = task.operand(X::kSumsBefore);
    const u32* from = task.address<const u32>(X::kSumsBefore) + row * x.stride[0] + abi::kSelectGroups + bin;
#pragma unroll 1
    for (int first = consumer.warp() * 32; first < p.parts; first += kConsumerThreads) {
      const int part = first + consumer.lane();
      const u32 there = __ballot_sync(~0u, part < p.parts && load_element(from + part * x.stride[1]) != 0);
      if (consumer.lane() == 0) s.some[first / 32] = there;
    }
  }

 private:
  /// Which of the 32 the lane has: masses add up from behind.
  ARK_DEVICE int lane_bin() const { return p.by_mass != 0 ? 31 - consumer.lane() : consumer.lane(); }

  /// Floats hold numbers of elements exactly, and doubles the sums of all.
  static_assert(abi::kSelectMost <= 1 << 24);
  static ARK_DEVICE double wide(u32 word, int level) {
    return level == 1 ? static_cast<double>(__uint_as_float(word)) : static_cast<double>(word);
  }
  ARK_DEVICE double own_sum(int first, int level) const {
    return wide(reinterpret_cast<const u32*>(&s.own)[first + lane_bin()], level);
  }
  /// The lane's one of 32 neighbouring sums, of all parts together, by way of `between` the warps; and its marks, if
  /// asked for. One code for groups and bins: what runs once a token is fetched anew.
  ARK_DEVICE double sum(int first, int level, bool marked, u32& marks) const {
    const abi::Operand& x = task.operand(X::kSumsBefore);
    const u32* from =
        task.address<const u32>(X::kSumsBefore) + row * x.stride[0] + first + consumer.thread() % kVectors * 4;
    double(&between)[kConsumerWarps][32] = s.sums[level];
    double sums[4] = {};
    u32 seen[4] = {};
#pragma unroll 1
    for (int part = consumer.thread() / kVectors; part < p.parts; part += kAhead * kTogether) {
      Vec<u32, 4> v[kAhead] = {}, m[kAhead] = {};
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        const u32* of_part = from + (part + k * kTogether) * x.stride[1];
        if (part + k * kTogether >= p.parts) continue;
        load_vector(of_part, v[k]);
        if (marked) load_vector(of_part + abi::kSelectBins, m[k]);
      }
#pragma unroll
      for (int k = 0; k < kAhead; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sums[i] += wide(v[k].v[i], level);
          seen[i] |= m[k].v[i];
        }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums[i] += __shfl_xor_sync(~0u, sums[i], 8);
      sums[i] += __shfl_xor_sync(~0u, sums[i], 16);
      if (consumer.lane() < kVectors) between[consumer.warp()][consumer.lane() * 4 + i] = sums[i];
    }
    if (marked) share_marks(seen);
    consumer.sync();
    double all = 0;
#pragma unroll
    for (int w = 0; w < kConsumerWarps; ++w) all += between[w][lane_bin()];
    if (marked) {
#pragma unroll
      for (int w = 0; w < kConsumerWarps; ++w) marks |= s.marks[w][lane_bin()];
    }
    return all;
  }
  ARK_DEVICE void share_marks(u32 (&seen)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      seen[i] |= __shfl_xor_sync(~0u, seen[i], 8);
      seen[i] |= __shfl_xor_sync(~0u, seen[i], 16);
      if (consumer.lane() < kVectors) s.marks[consumer.warp()][consumer.lane() * 4 + i] = seen[i];
    }
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
