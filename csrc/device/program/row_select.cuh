// kRowSelect: how far the nearest elements of a row go, told without sorting (device/abi/abi.h at RowSelectParams). A
// tile chooses the digit of the round before, then counts its part of the row. Its elements are under way while it
// chooses.
#pragma once
#include "device/program/row_select_digit.cuh"
#include "device/program/row_select_histogram.cuh"
#include "device/program/row_select_lists.cuh"
#include "device/program/support.cuh"

namespace ark::device {

template <class Programs>
struct RowSelect {
  static ARK_DEVICE void consume(Consumer& consumer, const Task& task) {
    Scratch& s = *reinterpret_cast<Scratch*>(consumer.scratch());
    const SelectHistogram histogram{consumer, s.bins, s.digit.seen};
    const bool marks = makes_marks(task.record->params.row_select);
    const bool listed = task.record->params.row_select.listed != 0;
    if (!listed) histogram.clear(marks);
    consumer.wait_for_item(task);
#pragma unroll 1
    for (int tile = task.first; tile < task.first + task.count; ++tile) {
      Tile of(consumer, task, s, tile);
      if (listed) consumer.sync();  // what was in the scratch has been read
      if (listed && of.lists()) continue;
      if (listed) consumer.sync();  // the lists have been read
      if (listed || tile != task.first) histogram.clear(marks);
      of.run();
      if (listed && task.has(abi::RowSelectOperand::kCut)) of.cut_row();
    }
  }

 private:
  static ARK_DEVICE bool makes_marks(const abi::RowSelectParams& p) {
    return p.parts > 1 && p.round == abi::kSelectLast - 1;  // not of lists
  }
  static constexpr int kAhead = 8;   // vectors of a thread under way
  static constexpr int kAtOnce = 2;  // of them worked on by one pass of the loop: a token's code is fetched anew
  using Vectors = Vec<float, 4>[kAhead];

  struct Scratch {
    union {
      SelectHistogram::Bins bins;
      SelectLists::Scratch lists;
    };
    SelectDigit::Scratch digit;
  };
  static_assert(sizeof(Scratch) <= kScratchBytes);

  struct Tile {
    using X = abi::RowSelectOperand;
    static constexpr int kStep = kConsumerThreads * 4;  // elements that all threads take at once

    const Consumer& consumer;
    const Task& task;
    const abi::RowSelectParams& p;
    Scratch& s;
    const bool whole;
    int row, part;
    int begin, end;  // elements
    int whole_end;   // of those that vectors hold
    const float* data;
    i64 stride;
    float top = 0;  // of the row; where values are given
    SelectState state;
    SelectBound bound;
    float share = 0;  // of a cut

    ARK_DEVICE Tile(const Consumer& c, const Task& of, Scratch& scratch, int tile)
        : consumer(c),
          task(of),
          p(of.record->params.row_select),
          s(scratch),
          whole(p.parts == 1 || (p.listed != 0 && p.round > 0)) {
      row = tile / of.record->grid[abi::GridAxis::kMiddle];
      part = tile - row * of.record->grid[abi::GridAxis::kMiddle];
      const abi::Operand& x = of.operand(X::kDistance);
      const bool counts = of.has(X::kDistance);  // a row has elements
      begin = part * p.part;
      end = counts ? (whole ? p.size : min(begin + p.part, p.size)) : begin;
      data = counts ? of.template address<const float>(X::kDistance) + row * x.stride[0] : nullptr;
      stride = x.stride[1];
      whole_end = p.vector == 4 ? end & ~3 : begin;
    }

    /// Makes a list, or finds the answer in lists; false: it is not there.
    ARK_DEVICE bool lists() {
      const SelectLists lists{consumer, task, p, s.lists, row};
      load_ahead();
      if (whole) {
        const bool cuts = task.has(X::kCut);
        u32 found, cut;
        if (!lists.read_all(bound.count, cuts)) return false;
        if (!cuts || !lists.find_and_cut(bound.count, share, found, cut)) {
          found = lists.find(bound.count);
          if (cuts) cut = lists.cut(found, share);
        }
        store_found(X::kOut, found);
        if (cuts) store_found(X::kCut, cut);
        return true;
      }
      Vectors x = {};
      load(begin, x);
      const u32 most = lists.choose(bound.count, top);
      each(x, [&](const Vec<float, 4>& v, int left) { lists.add(v, left, most); });
      consumer.sync();
      lists.store(reinterpret_cast<u32*>(sums()), most);
      return true;
    }

    ARK_DEVICE void run() {
      const SelectHistogram histogram{consumer, s.bins, s.digit.seen};
      const SelectDigit digit{consumer, task, p, s.digit, row, bound, whole};
      load_ahead();
#pragma unroll 1
      for (int round = whole ? 0 : p.round;; ++round) {
        const bool finishes = !whole && round >= abi::kSelectLast, own = whole || round > p.round;
        Vectors x = {};
        if (!finishes && round < abi::kSelectRounds) load(begin, x);
        if (own && round > 0) {
          histogram.clear(false);
          consumer.sync();  // the sums are there
        }
        SelectRest rest;
        if (round > 0) rest = digit.choose(round - 1, own, state);
        if (round == abi::kSelectRounds) break;
        if (finishes && SelectDigit::alike(rest.marks)) {
          state.found |= digit.only_digit(rest, state);
          break;
        }
        if (task.has(X::kMade)) top = row_top();
        if (finishes) digit.note_parts(state.found >> abi::kSelectMarkBits & (abi::kSelectBins - 1));
        if (own || finishes || round == 0) consumer.sync();  // the bins are clear; sums have been read
        if (finishes)
          count_again(histogram, round);
        else if (p.by_mass != 0)
          count<true>(histogram, round, x);
        else
          count<false>(histogram, round, x);
        consumer.sync();
        histogram.store(own || finishes ? &s.digit.own : sums(), p.by_mass != 0 && round == 0);
        if (makes_marks(p)) histogram.store_marks(reinterpret_cast<u32*>(sums() + 1));
        if (!whole && !finishes) return store_state();
      }
      store_found(X::kOut, state.found);
    }

    /// What lists do not have, after run().
    ARK_DEVICE void cut_row() {
      const SelectMasses masses{consumer, s.lists.of_row};
      u64 all = 0, behind = 0;
      u32 cut = 0;
      consumer.sync();
#pragma unroll 1
      for (int round = 0; round < abi::kSelectRounds; ++round) {
        const SelectRange range = {abi::select_shift(round), abi::select_shift(round - 1), cut, false, true};
        masses.clear();
        Vectors x = {};
        load(begin, x);
        each(x, [&](const Vec<float, 4>& v, int left) { masses.weigh(v, left, range, state.found); });
        cut |= masses.digit(share, round == 0, all, behind) << range.shift;
      }
      store_found(X::kCut, cut);
    }

   private:
    ARK_DEVICE void store_found(int operand, u32 found) const {
      if (consumer.thread() == 0)
        store_element(task.address<i64>(operand) + row * task.operand(operand).stride[0], i64{found});
    }
    /// The thread's whole vectors from `first` on.
    ARK_DEVICE void load(int first, Vectors& x) const {
      const int own = first + consumer.thread() * 4;
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        if (first + k * kStep >= whole_end)
          return;  // most parts have a vector for each thread: the rest is not fetched
        if (own + k * kStep < whole_end) load_vector(data + own + k * kStep, x[k]);
      }
    }

    ARK_DEVICE SelectRange range_of(int round, bool marks) const {
      return {abi::select_shift(round), abi::select_shift(round - 1), state.found, marks, p.by_mass != 0};
    }
    /// The histogram of the last digit, of the parts that have elements in the bin: a warp takes a part.
    ARK_DEVICE void count_again(const SelectHistogram& histogram, int round) const {
      const SelectRange range = range_of(round, false);
#pragma unroll 1
      for (int i = consumer.warp(); i < p.parts; i += kConsumerWarps)
        if ((s.digit.some[i / 32] >> i % 32 & 1) != 0) count_part(histogram, range, i * p.part);
    }
    ARK_DEVICE void count_part(const SelectHistogram& histogram, const SelectRange& range, int from) const {
      constexpr int kTurn = 32 * 4, kLoads = 4;
      const int to = min(from + p.part, p.size);
#pragma unroll 1
      for (int first = from + consumer.lane() * 4; first < to; first += kLoads * kTurn) {
        Vec<float, 4> x[kLoads] = {};
#pragma unroll
        for (int k = 0; k < kLoads; ++k) load_some(first + k * kTurn, to, x[k]);
#pragma unroll
        for (int k = 0; k < kLoads; ++k) histogram.template add<false, true>(x[k], to - first - k * kTurn, range);
      }
    }
    /// Four neighbours, as far as they are there.
    ARK_DEVICE void load_some(int at, int to, Vec<float, 4>& x) const {
      if (p.vector == 4 && at + 4 <= to) return load_vector(data + at, x);
#pragma unroll 1
      for (int i = 0; i < 4; ++i)
        if (at + i < to) set(x, i, load_element(data + (at + i) * stride));
    }
    static ARK_DEVICE void set(Vec<float, 4>& x, int at, float value) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (i == at) x.v[i] = value;
    }

    /// The histogram of the round's digit; `x` are the first vectors.
    template <bool kMass>
    ARK_DEVICE void count(const SelectHistogram& histogram, int round, Vectors& x) const {
      const SelectRange range = range_of(round, makes_marks(p));
      each(x, [&](const Vec<float, 4>& v, int left) { histogram.template add<kMass>(v, left, range); });
    }
    /// add(neighbours, how many of them are there) of all that the tile has; `x` are the first vectors.
    template <class Add>
    ARK_DEVICE void each(Vectors& x, const Add& add) const {
#pragma unroll 1
      for (int first = begin; first < whole_end;) {
#pragma unroll 1
        for (int k = 0;;) {
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) {
            const int at = first + (k + i) * kStep + consumer.thread() * 4;
            if (at >= whole_end) continue;
            if (task.has(X::kMade)) make_distances(at, x[i]);
            add(x[i], 4);
          }
          k += kAtOnce;
          if (k >= kAhead || first + k * kStep >= whole_end) break;
          turn(x);
        }
        first += kAhead * kStep;
        if (first < whole_end) load(first, x);
      }
      each_of_rest(add);
    }
    /// The next vectors come first.
    static ARK_DEVICE void turn(Vectors& x) {
#pragma unroll
      for (int k = 0; k + kAtOnce < kAhead; ++k) x[k] = x[k + kAtOnce];
    }

    /// What no vector holds: the end of a row, or all of one that lies in another way.
    template <class Add>
    ARK_DEVICE void each_of_rest(const Add& add) const {
#pragma unroll 1
      for (int first = whole_end + consumer.thread() * 4; first < end; first += kAtOnce * kStep) {
        Vec<float, 4> x[kAtOnce] = {};
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            if (const int at = first + k * kStep + i; at < end) x[k].v[i] = load_element(data + at * stride);
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          const int at = first + k * kStep, left = end - at;
          if (left <= 0) continue;
          if (task.has(X::kMade)) make_some_distances(at, x[k]);
          add(x[k], left);
        }
      }
    }

    /// The row's, of maxima of its parts; every warp the same.
    ARK_DEVICE float row_top() const {
      constexpr int kLoads = 4, kLanes = 32;
      const abi::Operand& x = task.operand(X::kTops);
      const float* from = task.address<const float>(X::kTops) + row * x.stride[0];
      float top = -op::infinity();
#pragma unroll 1
      for (int first = consumer.lane(); first < p.tops; first += kLoads * kLanes) {
        float v[kLoads];
#pragma unroll
        for (int k = 0; k < kLoads; ++k)
          v[k] =
              first + k * kLanes < p.tops ? load_element(from + (first + k * kLanes) * x.stride[1]) : -op::infinity();
#pragma unroll
        for (int k = 0; k < kLoads; ++k) top = maximum_or_nan(top, v[k]);
      }
#pragma unroll
      for (int distance = 1; distance < kLanes; distance *= 2)
        top = maximum_or_nan(top, __shfl_xor_sync(~0u, top, distance));
      return top;
    }
    /// A vector of values becomes distances, here and in memory.
    ARK_DEVICE void make_distances(int at, Vec<float, 4>& x) const {
#pragma unroll
      for (int i = 0; i < 4; ++i) x.v[i] = top - x.v[i];
      store_vector(made() + at, x);
    }
    /// Of those before the end.
    ARK_DEVICE void make_some_distances(int at, Vec<float, 4>& x) const {
      const i64 step = task.operand(X::kMade).stride[1];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x.v[i] = top - x.v[i];
        if (at + i < end) store_element(made() + (at + i) * step, x.v[i]);
      }
    }
    ARK_DEVICE float* made() const { return task.address<float>(X::kMade) + row * task.operand(X::kMade).stride[0]; }

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
      if (task.has(X::kCut))
        share = load_element(task.address<const float>(X::kShare) + row * task.operand(X::kShare).stride[0]);
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
