// kRowSelect: how far the nearest elements of a row go, told without sorting (device/abi/abi.h at RowSelectParams). A
// tile adds up its part of the row in a histogram in shared memory, which lies there four times, for every fourth lane:
// lanes of a warp that have the same bin meet in four banks. Sums are of integers: any order gives the same bits.
#pragma once
#include "device/program/row_select_digit.cuh"
#include "device/program/support.cuh"

namespace ark::device {

template <class Programs>
struct RowSelect {
  static ARK_DEVICE void load_immutable(Loader&, const Task&) {}
  static ARK_DEVICE void load_dependent(Loader&, const Task&) {}

  static ARK_DEVICE void consume(Consumer& consumer, const Task& task) {
    consumer.wait_for_item(task);
#pragma unroll 1
    for (int tile = task.first; tile < task.first + task.count; ++tile) Tile(consumer, task, tile).run();
  }

 private:
  static constexpr int kCopies = 4, kAhead = 8;  // vectors of a thread under way
  static constexpr int kOwnGroups = abi::kSelectGroups / kConsumerWarps;

  struct Scratch {
    Vec<u32, kCopies> bins[abi::kSelectBins];
    SelectDigit::Scratch digit;
  };
  static_assert(sizeof(Scratch) <= kScratchBytes);

  static ARK_DEVICE u32 steps(float distance) {  // NaN: fminf takes the other
    return __float2uint_rz(fminf(distance * abi::kSelectSteps, static_cast<float>(abi::kSelectFarthest)));
  }

  struct Tile {
    using X = abi::RowSelectOperand;
    using Vectors = Vec<float, 4>[kAhead];
    static constexpr int kStep = kConsumerThreads * 4;

    const Consumer& consumer;
    const Task& task;
    const abi::RowSelectParams& p;
    Scratch& s;
    int row, part;
    int begin, end;  // elements
    const float* data;
    i64 stride;
    SelectState state;

    ARK_DEVICE Tile(const Consumer& c, const Task& of, int tile)
        : consumer(c), task(of), p(of.record->params.row_select), s(*reinterpret_cast<Scratch*>(c.scratch())) {
      row = tile / of.record->grid[1];
      part = tile - row * of.record->grid[1];
      const abi::Operand& x = of.operand(X::kDistance);
      const bool counts = of.has(X::kDistance);
      begin = part * p.part;
      end = counts ? min(begin + p.part, p.size) : begin;
      data = counts ? of.template address<const float>(X::kDistance) + row * x.stride[0] : nullptr;
      stride = x.stride[1];
    }

    ARK_DEVICE void run() {
      const bool whole = p.parts == 1;
      const SelectDigit digit{consumer, task, p, s.digit, row};
      if (task.has(X::kStateBefore)) load_state();
#pragma unroll 1
      for (int round = p.round;; ++round) {
        Vectors x = {};
        if (round < abi::kSelectRounds) load(begin, x);
        if (round > 0) {
          if (whole) consumer.sync();  // the sums are there
          digit.choose(round - 1, state, [&] { clear(); });
        } else {
          clear();
        }
        if (round == abi::kSelectRounds) break;
        consumer.sync();
        if (p.by_mass != 0)
          count<true>(round, x);
        else
          count<false>(round, x);
        consumer.sync();
        store_sums(round, whole);
        if (!whole) return store_state();
      }
      if (consumer.thread() == 0)
        store_element(task.address<i64>(X::kOut) + row * task.operand(X::kOut).stride[0], i64{state.found});
    }

   private:
    /// A warp clears the bins that it has added up, and reads no others.
    ARK_DEVICE int own_bin(int i) const { return (consumer.warp() * kOwnGroups + i) * 32 + consumer.lane(); }
    ARK_DEVICE void clear() const {
#pragma unroll
      for (int i = 0; i < kOwnGroups; ++i) s.bins[own_bin(i)] = {};
    }

    /// The thread's vectors from `first` on. A row's last one may end behind it: that one goes element by element.
    ARK_DEVICE void load(int first, Vectors& x) const {
      const int own = first + consumer.thread() * 4;
      const bool vectors = p.vector == 4;
#pragma unroll
      for (int k = 0; k < kAhead; ++k)
        if (vectors && own + k * kStep + 4 <= end) load_vector(data + own + k * kStep, x[k]);
      if (vectors && end % 4 == 0) return;
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        const int at = own + k * kStep;
        if (vectors && at + 4 <= end) continue;
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (at + i < end) x[k].v[i] = load_element(data + (at + i) * stride);
      }
    }

    /// The histogram of the round's digit; `x` are the first vectors.
    template <bool kMass>
    ARK_DEVICE void count(int round, Vectors& x) const {
      const int shift = abi::select_shift(round), above = abi::select_shift(round - 1);
#pragma unroll 1
      for (int first = begin;;) {
#pragma unroll
        for (int k = 0; k < kAhead; ++k) {
          const int at = first + k * kStep + consumer.thread() * 4;
#pragma unroll
          for (int i = 0; i < 4; ++i)
            if (at + i < end) add<kMass>(x[k].v[i], shift, above);
        }
        first += kAhead * kStep;
        if (first >= end) return;
        load(first, x);
      }
    }

    template <bool kMass>
    ARK_DEVICE void add(float distance, int shift, int above) const {
      const u32 n = steps(distance);
      if (above < abi::kSelectBits && (n ^ state.found) >> above != 0) return;
      const u32 bin = n >> shift & (abi::kSelectBins - 1) & ((1u << (above - shift)) - 1);
      u32 weight = 1;
      if constexpr (kMass) {
        if (!(distance < abi::kSelectMassless)) return;  // nor a NaN
        weight = weight_of(distance, above == abi::kSelectBits ? bin << shift : state.found);
      }
      atomicAdd(&s.bins[bin].v[consumer.lane() % kCopies], weight);
    }

    /// Relative to what is `low` steps away; at least one unit, so that a tail of next to nothings is not lost.
    static ARK_DEVICE u32 weight_of(float distance, u32 low) {
      constexpr float kUnits = 1 << abi::kSelectMassBits;
      const float behind = fmaxf(distance - static_cast<float>(low) * (1 / abi::kSelectSteps), 0.0f);
      return max(__float2uint_rn(op::exp_fast(-behind) * kUnits), 1u);
    }

    /// The sums of the bins, and of groups of 32 of them.
    ARK_DEVICE void store_sums(int round, bool whole) const {
      const bool falls = p.by_mass != 0 && round == 0;  // a bin's units are those of its own low end
      const float in_group = op::exp_fast(-static_cast<float>(consumer.lane()) / 16);
      const abi::Operand& x = task.operand(X::kSums);
      u32* to = whole ? s.digit.own.groups : task.address<u32>(X::kSums) + row * x.stride[0] + part * x.stride[1];
#pragma unroll
      for (int i = 0; i < kOwnGroups; ++i) {
        const Vec<u32, kCopies> copies = s.bins[own_bin(i)];
        const u32 bin = copies.v[0] + copies.v[1] + copies.v[2] + copies.v[3];
        u32 share = bin;
        if (falls) share = max(__float2uint_rn(static_cast<float>(bin) * in_group), min(bin, 1u));
        const u32 group = __reduce_add_sync(~0u, share);
        to[abi::kSelectGroups + own_bin(i)] = bin;
        if (consumer.lane() == 0) to[consumer.warp() * kOwnGroups + i] = group;
      }
    }

    ARK_DEVICE double* state_at(int operand) const {
      const abi::Operand& x = task.operand(operand);
      return task.address<double>(operand) + row * x.stride[0] + part * x.stride[1];
    }
    ARK_DEVICE void load_state() {
      const double* from = state_at(X::kStateBefore);
      state = {static_cast<u32>(load_element(from)), load_element(from + 1), load_element(from + 2)};
    }
    ARK_DEVICE void store_state() const {
      if (!task.has(X::kState) || consumer.thread() != 0) return;
      double* to = state_at(X::kState);
      store_element(to, static_cast<double>(state.found));
      store_element(to + 1, state.outside);
      store_element(to + 2, state.limit);
    }
  };
};

}  // namespace ark::device
