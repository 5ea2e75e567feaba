// kRow: a row program over blocks of `tile` rows. A row is handled by a warp, a warpgroup or all consumers, whichever
// first holds it in registers (kCachedChunks vectors a thread); longer rows are read again in every pass.
#pragma once
#include "device/flag_words.cuh"
#include "device/program_support.cuh"

namespace ark::device {

/// The threads that share a row: 32, 128 or 256 of them.
struct RowGroup {
  const Consumer& consumer;
  int size;

  ARK_DEVICE int thread() const { return consumer.thread() & (size - 1); }
  ARK_DEVICE int index() const { return consumer.thread() / size; }
  ARK_DEVICE int count() const { return kConsumerThreads / size; }
  ARK_DEVICE void sync() const {
    if (size == kConsumerThreads)
      consumer.sync();
    else if (size == 128)
      consumer.sync_group();
    else
      __syncwarp();
  }
  /// The accumulators of all threads of the group, merged in a fixed tree; every thread gets the result. `buffer`:
  /// shared memory for 8 accumulators, used by every call (two barriers keep calls apart).
  template <class A>
  ARK_DEVICE void reduce(A& acc, unsigned char* buffer) const {
    if constexpr (!A::kEmpty) {
#pragma unroll
      for (int mask = 16; mask > 0; mask >>= 1) {
        A other = shuffle_xor(acc, mask);
        // the lower lane's part comes first, in both lanes
        if (consumer.lane() & mask) {
          other.merge(acc);
          acc = other;
        } else {
          acc.merge(other);
        }
      }
      if (size == 32) return;
      A* parts = reinterpret_cast<A*>(buffer);
      const int warps = size / 32, first = index() * warps;
      if (consumer.lane() == 0) parts[consumer.warp()] = acc;
      sync();
      acc = parts[first];  // all reads at once, then merged in order
      A other[7];
      unrolled<7>([&](auto w) __attribute__((always_inline)) { other[w.value] = parts[min(first + w.value + 1, 7)]; });
      unrolled<7>([&](auto w) __attribute__((always_inline)) {
        if (w.value + 1 < warps) acc.merge(other[w.value]);
      });
      sync();
    }
  }
};

/// One walk over the elements of a row, recursively pass by pass: `kept` vectors stay in registers.
template <class P, int V, bool kCached, class Group = RowGroup>
struct RowWalk {
  static constexpr int kChunks = kCached ? P::kCachedChunks : 1;
  static constexpr int kRowDims = P::kReduceDims > 0 ? P::kReduceDims : 1;  // a prologue without a reduction names none
  using Inputs = typename P::template Inputs<V>;

  const ProgramContext& c;
  const Group& group;
  i64 row_size;
  Inputs kept[kChunks];

  ARK_DEVICE void coordinates(i64 r, const i32 (&row)[P::kDims], i32 (&x)[P::kDims]) const {
#pragma unroll
    for (int d = 0; d < P::kDims; ++d) x[d] = row[d];
    unflatten<P::kDims - kRowDims, P::kDims>(*c.task.record, r, x);
  }
  ARK_DEVICE int element_of(int chunk) const {
    return (chunk * group.size + group.thread()) * V;
  }  // cached rows are short

  ARK_DEVICE void load(const i32 (&row)[P::kDims]) {
    if constexpr (kCached) {
      unrolled<kChunks>([&](auto k) __attribute__((always_inline)) {
        if (k.value * group.size * V < row_size && element_of(k.value) < row_size) {
          i32 x[P::kDims] = {};
          coordinates(element_of(k.value), row, x);
          P::template load<V>(c, x, kept[k.value]);
        }
      });
    }
  }

  /// Programs with flagged operands: until all words of the row's vectors are there.
  ARK_DEVICE void wait_until_ready(const i32 (&row)[P::kDims]) {
    device::wait_until_ready(c, [&] {
      bool all = true;
      unrolled<kChunks>([&](auto k) __attribute__((always_inline)) {
        const int at = element_of(k.value);
        if (k.value * group.size * V < row_size && at < row_size) {
          i32 x[P::kDims] = {};
          coordinates(at, row, x);
          all = P::template ready<V>(c, x, kept[k.value]) && all;
        }
      });
      return all;
    });
  }

  template <int kPass, class Sink>
  ARK_DEVICE void run(const i32 (&row)[P::kDims], typename P::Uniform& u, unsigned char* buffer, const Sink& sink) {
    auto acc = P::accumulator(Pass<kPass>{});
    acc.start();
    if constexpr (kCached) {
      unrolled<kChunks>([&](auto k) __attribute__((always_inline)) {
        const int at = element_of(k.value);
        if (k.value * group.size * V < row_size && at < row_size) {
          i32 x[P::kDims] = {};
          coordinates(at, row, x);
          P::template element<V>(Pass<kPass>{}, c, x, at, kept[k.value], u, acc, sink.at(at));
        }
      });
    } else {
      const i64 step = static_cast<i64>(group.size) * V;
      // As many elements in flight whatever the vector: rows of odd lengths went through memory one wait per element.
      constexpr int kUnroll = V == 1 ? (P::kUnroll * P::kVector < 8 ? P::kUnroll * P::kVector : 8) : P::kUnroll;
#pragma unroll 1
      for (i64 e = group.thread() * V; e < row_size; e += kUnroll * step) {
        i32 x[kUnroll][P::kDims] = {};
        Inputs in[kUnroll];
        unrolled<kUnroll>([&](auto k) __attribute__((always_inline)) {
          if (e + k.value * step < row_size) {
            coordinates(e + k.value * step, row, x[k.value]);
            P::template load<V>(c, x[k.value], in[k.value]);
            if constexpr (P::kFlagged)
              device::wait_until_ready(c, [&] { return P::template ready<V>(c, x[k.value], in[k.value]); });
          }
        });
        unrolled<kUnroll>([&](auto k) __attribute__((always_inline)) {
          const i64 at = e + k.value * step;
          if (at < row_size) P::template element<V>(Pass<kPass>{}, c, x[k.value], at, in[k.value], u, acc, sink.at(at));
        });
      }
    }
    group.reduce(acc, buffer);
    P::finish(acc, u);
    if constexpr (kPass + 1 < P::kPasses) run<kPass + 1>(row, u, buffer, sink);
  }
};

/// A sink of rows that yield nothing.
struct RowNoSink {
  ARK_DEVICE NoSink at(i64) const { return {}; }
};

template <class Programs>
struct Row {
  static ARK_DEVICE void load_immutable(Loader&, const Task&) {}
  static ARK_DEVICE void load_dependent(Loader&, const Task&) {}

  static ARK_DEVICE void consume(Consumer& consumer, const Task& task) {
    consumer.wait_for(task, task.first, task.count);
    Programs::row(task.record->params.program.program, [&](auto program) __attribute__((always_inline)) {
      using P = decltype(program);
      constexpr int V = P::kVector;
      const abi::ProgramParams& p = task.record->params.program;
      constexpr i64 kPerThread = P::kCachedChunks * V;
      if (task.record->size[P::kDims - 1] % V != 0) {
        run_rows<P, 1, false>(consumer, task, p.row_size <= 512 ? 32 : kConsumerThreads);
      } else if (p.row_size <= kPerThread * kConsumerThreads) {
        run_rows<P, V, true>(consumer, task,
                             p.row_size <= kPerThread * 32    ? 32
                             : p.row_size <= kPerThread * 128 ? 128
                                                              : kConsumerThreads);
      } else if constexpr (Programs::kLongRows) {  // false: no row of the plan is longer than what registers hold
        run_rows<P, V, false>(consumer, task, kConsumerThreads);
      }
    });
  }

 private:
  template <class P, int V, bool kCached>
  static ARK_DEVICE void run_rows(Consumer& consumer, const Task& task, int group_size) {
    const abi::OpRecord& r = *task.record;
    const abi::ProgramParams& p = r.params.program;
    const ProgramContext c(task, p.first_operand, consumer.worker);
    const RowGroup group{consumer, group_size};
    const i64 begin = task.first * p.tile, end = min(p.num_rows, (task.first + static_cast<i64>(task.count)) * p.tile);
    RowWalk<P, V, kCached> walk{c, group, p.row_size};
#pragma unroll 1
    for (i64 n = begin; n < end; n += group.count()) {  // all groups take equally many turns: they share barriers
      const i64 row_number = n + group.index();
      if (row_number >= end) continue;  // groups never wait for each other inside a row
      i32 row[P::kDims] = {};
      unflatten<0, P::kDims - P::kReduceDims>(r, row_number, row);
      typename P::Uniform u{};
      walk.load(row);
      walk.template run<0>(row, u, consumer.scratch(), RowNoSink{});
      if (P::kUniformStores && group.thread() == 0) P::uniform_stores(c, row, u);
    }
  }
};

}  // namespace ark::device
