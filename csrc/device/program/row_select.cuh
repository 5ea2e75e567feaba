// kRowSelect: how far the nearest elements of a row go, told without sorting (device/abi/abi.h at RowSelectParams). A
// tile chooses the digit of the round before, then counts its part of the row. What its distances are made of is under
// way while it chooses.
#pragma once
#include "device/program/row_select_digit.cuh"
#include "device/program/row_select_histogram.cuh"
#include "device/program/support.cuh"

namespace ark::device {

template <class Programs>
struct RowSelect {
  static ARK_DEVICE void load_immutable(Loader&, const Task&) {}
  static ARK_DEVICE void load_dependent(Loader&, const Task&) {}

  static ARK_DEVICE void consume(Consumer& consumer, const Task& task) {
    Scratch& s = *reinterpret_cast<Scratch*>(consumer.scratch());
    SelectHistogram{consumer, s.bins}.clear();
    consumer.wait_for_item(task);
    const abi::RowSelectParams& p = task.record->params.row_select;
    if (p.program < 0) return run_tiles<Nothing, 1, false>(consumer, task, s);
    Programs::select(p.program, [&](auto program) {
      using P = decltype(program);
      if (p.vector == 4)
        run_tiles<P, 4, true>(consumer, task, s);
      else
        run_tiles<P, 1, true>(consumer, task, s);
    });
  }

 private:
  static constexpr int kAhead = 8;  // vectors of a thread under way

  /// The program of tiles that count nothing.
  struct Nothing {
    static constexpr int kDims = 2;
    template <int V>
    struct Inputs {};
    template <int V>
    static ARK_DEVICE void load(const ProgramContext&, const i32 (&)[2], Inputs<V>&) {}
  };

  struct Scratch {
    SelectHistogram::Bins bins;
    SelectDigit::Scratch digit;
  };
  static_assert(sizeof(Scratch) <= kScratchBytes);

  template <class P, int V, bool kCounts>
  static ARK_DEVICE void run_tiles(const Consumer& consumer, const Task& task, Scratch& s) {
#pragma unroll 1
    for (int tile = task.first; tile < task.first + task.count; ++tile) {
      if (tile != task.first) SelectHistogram{consumer, s.bins}.clear();
      Tile<P, V, kCounts>(consumer, task, s, tile).run();
    }
  }

  /// What a program yields.
  template <int V>
  struct Distances {
    float (&x)[V];
    template <int>
    ARK_DEVICE void yield(const float (&y)[V]) const {
      ARK_EACH x[i] = y[i];
    }
  };

  template <class P, int V, bool kCounts>
  struct Tile {
    using X = abi::RowSelectOperand;
    using Vectors = typename P::template Inputs<V>[kAhead];
    static constexpr int kStep = kConsumerThreads * V;

    const Consumer& consumer;
    const Task& task;
    const abi::RowSelectParams& p;
    Scratch& s;
    int row, part;
    int begin, end;  // elements
    ProgramContext context;
    SelectState state;
    SelectBound bound;

    ARK_DEVICE Tile(const Consumer& c, const Task& of, Scratch& scratch, int tile)
        : consumer(c),
          task(of),
          p(of.record->params.row_select),
          s(scratch),
          context(of, of.record->params.row_select.first_operand, c.worker) {
      row = tile / of.record->grid[1];
      part = tile - row * of.record->grid[1];
      begin = part * p.part;
      end = kCounts ? min(begin + p.part, p.size) : begin;
    }

    ARK_DEVICE void run() {
      const bool whole = p.parts == 1;
      const SelectHistogram histogram{consumer, s.bins};
      const SelectDigit digit{consumer, task, p, s.digit, row, bound};
      load_ahead();
#pragma unroll 1
      for (int round = p.round;; ++round) {
        Vectors x = {};
        if (round < abi::kSelectRounds) load(begin, x);
        if (whole && round > 0) {
          histogram.clear();
          consumer.sync();  // the sums are there
        }
        if (round > 0) digit.choose(round - 1, state);
        if (round == abi::kSelectRounds) break;
        if (whole || round == 0) consumer.sync();  // the bins are clear; sums have been read
        if (p.by_mass != 0)
          count<true>(histogram, round, x);
        else
          count<false>(histogram, round, x);
        consumer.sync();
        histogram.store(whole ? &s.digit.own : sums(), p.by_mass != 0 && round == 0);
        if (!whole) return store_state();
      }
      if (consumer.thread() == 0)
        store_element(task.address<i64>(X::kOut) + row * task.operand(X::kOut).stride[0], i64{state.found});
    }

   private:
    /// Of the thread's vectors from `first` on.
    ARK_DEVICE void load(int first, Vectors& in) const {
      unrolled<kAhead>([&](auto k) __attribute__((always_inline)) {
        const i32 at[P::kDims] = {row, first + k.value * kStep + consumer.thread() * V};
        if (at[1] < end) P::template load<V>(context, at, in[k.value]);
      });
    }

    /// The histogram of the round's digit; `in` are the first vectors.
    template <bool kMass>
    ARK_DEVICE void count(const SelectHistogram& histogram, int round, Vectors& in) const {
      const int shift = abi::select_shift(round), above = abi::select_shift(round - 1);
#pragma unroll 1
      for (int first = begin; first < end;) {
        unrolled<kAhead>([&](auto k) __attribute__((always_inline)) {
          const i32 at[P::kDims] = {row, first + k.value * kStep + consumer.thread() * V};
          if (at[1] >= end) return;
          if constexpr (kCounts) {
            float x[V];
            const typename P::Uniform uniform = {};
            auto none = P::accumulator(Pass<0>{});
            P::template element<V>(Pass<0>{}, context, at, at[1], in[k.value], uniform, none, Distances<V>{x});
            histogram.template add<kMass, V>(x, state.found, shift, above);
          }
        });
        first += kAhead * kStep;
        if (first < end) load(first, in);
      }
    }

    ARK_DEVICE SelectSums* sums() const {
      const abi::Operand& x = task.operand(X::kSums);
      return reinterpret_cast<SelectSums*>(task.address<u32>(X::kSums) + row * x.stride[0] + part * x.stride[1]);
    }
    ARK_DEVICE i64* state_at(int operand) const {
      const abi::Operand& x = task.operand(operand);
      return task.address<i64>(operand) + row * x.stride[0] + part * x.stride[1];
    }
    /// State and bound. Nothing here uses what comes, so that the loads behind are under way at the same time.
    ARK_DEVICE void load_ahead() {
      if (task.has(X::kStateBefore)) {
        const i64* from = state_at(X::kStateBefore);
        state.found = load_element(reinterpret_cast<const u32*>(from));
        state.outside = load_element(reinterpret_cast<const double*>(from + 1));
        state.limit = load_element(reinterpret_cast<const double*>(from + 2));
      }
      if (!task.has(X::kBound)) return;
      const i64 at = row * task.operand(X::kBound).stride[0];
      if (p.by_mass != 0)
        bound.share = load_element(task.address<const float>(X::kBound) + at);
      else
        bound.count = load_element(task.address<const i64>(X::kBound) + at);
    }
    ARK_DEVICE void store_state() const {
      if (!task.has(X::kState) || consumer.thread() != 0) return;
      i64* to = state_at(X::kState);
      store_element(to, i64{state.found});
      store_element(to + 1, __double_as_longlong(state.outside));
      store_element(to + 2, __double_as_longlong(state.limit));
    }
  };
};

}  // namespace ark::device
