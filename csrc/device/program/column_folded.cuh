// Rows of a few columns that lie one behind another, as one run of elements: a thread takes whole vectors so far apart
// that an element of a vector always belongs to the same column. Of the vectors at both ends, some elements count. The
// order of sums follows from where the run begins in its 16 bytes: equal tensors that begin elsewhere may differ in
// last bits.
#pragma once
#include "device/abi/column_slots.h"
#include "device/program/column_rows.cuh"

namespace ark::device {

/// Elements `begin` to `end` of a run, whose first one lies `phase` elements behind an aligned address.
template <class P, int V>
class ColumnFold {
 public:
  bool exists = false;

  /// Rows [first, last) at the columns of x, a whole row of which the program sums.
  ARK_DEVICE ColumnFold(const ProgramContext& c, const i32 (&x)[P::kDims], i64 first, i64 last)
      : walk_(c, x, 0, V), row_(static_cast<i32>(c.task.record->size[P::kDims - 1])) {
    bool fits = first < last && (last - first) * row_ < (1 << 30);
    int head = -1;
#pragma unroll
    for (int i = 0; i < P::kNumOperands; ++i) {
      if ((P::kVectorLoads >> i & 1) == 0) continue;
      const abi::Operand& o = c.operand(i);
      const int shift = element_shift(o.dtype);
      fits = fits && o.stride[P::kDims - 1] == 1 && o.stride[0] == row_;
      const u64 begin = walk_.first[i] + static_cast<u64>(first * row_ << shift);
      const int place = static_cast<int>(begin >> shift) & (V - 1);
      fits = fits && (head < 0 || place == phase_);
      head = i, phase_ = place;
      walk_.first[i] = begin - (static_cast<u64>(place) << shift);
      walk_.step[i] = V << shift;
    }
    elements_ = static_cast<i32>(fits ? (last - first) * row_ : 0);
    threads_ = abi::folding_threads(row_, V, kConsumerThreads);
    exists = fits && threads_ > 0;
  }

  template <class A, class Finish>
  ARK_DEVICE void run(Consumer& consumer, const abi::OpRecord& r, A* sums, const Finish& finish) const {
    const int thread = consumer.thread();
    if (thread < threads_) {
      A acc[V];
      const i32 whole = (phase_ + elements_) / V;  // vectors before the last one that is partly there
      const i32 from = thread == 0 && phase_ > 0 ? threads_ : thread;
      i32 x[P::kDims] = {};
      using Rows = ColumnRows<P, V, P::kUnroll>;
      using Place = typename Rows::Place;
      const Rows rows{r, static_cast<Place>(whole), static_cast<Place>(threads_)};
      rows.run(walk_, static_cast<Place>(from), x, acc);
      if (thread == 0 && phase_ > 0) add_part(0, acc);
      if ((whole > 0 || phase_ == 0) && (phase_ + elements_) % V != 0 && whole % threads_ == thread)
        add_part(whole, acc);
      ARK_EACH sums[thread * V + i] = acc[i];
    }
    merge(consumer, sums, finish);
  }

 private:
  /// Vector `number`, of which some elements are before or behind the run.
  template <class A>
  ARK_DEVICE void add_part(i32 number, A (&acc)[V]) const {
    ColumnWalk<P> part = walk_;
    part.low = max(0, phase_ - number * V), part.high = min(V, phase_ + elements_ - number * V);
    const i32 x[P::kDims] = {number};
    typename P::template Inputs<V> in;
    P::template load<V>(part, x, in);
    A own[V];
    ARK_EACH own[i].start();
    P::template element<V>(Pass<0>{}, part, x, number, in, typename P::Uniform{}, own, NoSink{});
    ARK_EACH if (i >= part.low && i < part.high) acc[i].merge(own[i]);
  }
  /// The threads' sums by column, in two steps: parts of them side by side, then these in order.
  template <class A, class Finish>
  ARK_DEVICE void merge(Consumer& consumer, A* sums, const Finish& finish) const {
    const int count = threads_ * V / row_;  // sums of a column
    const int parts = min(kConsumerThreads / row_, count), each = (count + parts - 1) / parts;
    const int column = consumer.thread() % row_, part = consumer.thread() / row_;
    const int begin = part * each, end = min(count, begin + each);
    const bool adds = part < parts && begin < end;
    // a column's first sum, of those that the threads' elements have: the run begins at element `phase` of thread 0
    A* first = sums + (column + phase_) % row_;
    consumer.sync();
    A total;
    total.start();
    if (adds)
      for (int k = begin; k < end; ++k) total.merge(first[k * row_]);
    consumer.sync();  // before the sums are overwritten
    if (adds) sums[part * row_ + column] = total;
    consumer.sync();
    if (part == 0) {
#pragma unroll 4
      for (int k = 1; k * each < count; ++k) total.merge(sums[k * row_ + column]);
      finish(column, total);
    }
    consumer.sync();  // before the next sums
  }

  ColumnWalk<P> walk_;
  i32 row_, phase_ = 0, elements_ = 0, threads_ = 0;
};

}  // namespace ark::device
