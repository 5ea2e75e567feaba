// kScatterSum: a tile's rows, each the sum of the source's rows whose index names it. The threads look through all
// indices, 1024 at a time, and list the terms of the tile's rows in their order in shared memory. `lanes` threads add a
// row, a vector of its columns each; where the tile has fewer rows than there are such groups, several groups share a
// row's terms (every so many places of the list) and are added in order. Which groups add what depends on the indices
// and the tiles alone, so that results have the same bits in every run of a plan.
#pragma once
#include "device/loop/tensor_map.cuh"  // numbers of dtypes
#include "device/program/support.cuh"

namespace ark::device {

template <class Programs>
struct ScatterSum {
  static ARK_DEVICE void load_immutable(Loader&, const Task&) {}
  static ARK_DEVICE void load_dependent(Loader&, const Task&) {}

  static ARK_DEVICE void consume(Consumer& consumer, const Task& task) {
    consumer.wait_for_item(task);
    const abi::ScatterSumParams& p = task.record->params.scatter_sum;
#pragma unroll 1
    for (int t = task.first; t < task.first + task.count; ++t) {
      switch (p.dtype) {
        case kTypeF16:
          run<f16, kTypeF16>(consumer, task, t);
          break;
        case kTypeBF16:
          run<bf16, kTypeBF16>(consumer, task, t);
          break;
        case kTypeF32:
          run<float, kTypeF32>(consumer, task, t);
          break;
        default:
          run<double, kTypeF64>(consumer, task, t);
      }
    }
  }

 private:
  /// Of types that no sum of this kernel has there is no code.
  template <class S, int kType>
  static ARK_DEVICE void run(const Consumer& consumer, const Task& task, int tile) {
    constexpr int V = 16 / static_cast<int>(sizeof(S));
    if constexpr ((Programs::kScatterTypes >> kType & 1) != 0) {
      if (task.record->params.scatter_sum.vector == V)
        Tile<S, V>(consumer, task, tile).run();
      else
        Tile<S, 1>(consumer, task, tile).run();
    }
  }

  template <class S, int V>
  struct Tile {
    using X = abi::ScatterSumOperand;
    using T = decltype(widen(S{}));
    static constexpr int kAhead = 4;  // indices of a thread under way
    static constexpr int kMostTerms = 2 * kAhead * kConsumerThreads, kUnroll = 8;
    static_assert(kMostTerms == abi::kScatterMostTerms);
    struct Term {
      i32 number, row;  // of the source, and in the tile
    };
    static constexpr int kCountBytes = 2 * kAhead * kConsumerWarps * 4,
                         kTermBytes = kMostTerms * static_cast<int>(sizeof(Term));
    static_assert(kCountBytes + kTermBytes + kConsumerThreads * V * static_cast<int>(sizeof(T)) <= kScratchBytes);

    const Consumer& consumer;
    const Task& task;
    const abi::ScatterSumParams& p;
    const abi::Operand& source;
    const S* origin;  // of the thread's columns
    S* to;
    i64 out_stride, out_step;
    int first_row, rows;  // of the tile
    int groups, lane, group;
    int column;  // the thread's first one
    bool has_columns;

    ARK_DEVICE Tile(const Consumer& c, const Task& of, int tile)
        : consumer(c), task(of), p(of.record->params.scatter_sum), source(of.operand(X::kSource)) {
      const int c1 = tile % of.record->grid[1], c0 = tile / of.record->grid[1];
      first_row = c0 * p.tile_rows;
      rows = min(p.tile_rows, p.rows - first_row);
      lane = c.thread() & (p.lanes - 1);
      group = c.thread() / p.lanes;
      groups = kConsumerThreads / p.lanes;
      column = (c1 * p.lanes + lane) * V;
      has_columns = column < p.columns;
      const abi::Operand& out = of.operand(X::kOut);
      out_stride = out.stride[0];
      out_step = out.stride[1];
      origin = p.terms > 0 ? of.template address<S>(X::kSource) + column * source.stride[1] : nullptr;
      to = of.template address<S>(X::kOut) + first_row * out_stride + column * out_step;
    }

    /// As many rows at a time as have a list that is not too long, at least those of a turn: they may need several.
    ARK_DEVICE void run() {
      const int turn = min(p.tile_rows, groups);
      int span = p.tile_rows;
#pragma unroll 1
      for (int row = 0; row < rows;) {
        int from = 0, count = list(row, row + span, from);
        if (from < p.terms && span > turn) {
          span /= 2;
          consumer.sync();
          continue;
        }
#pragma unroll 1
        for (const int end = min(row + span, rows); row < end; row += turn) {
          T sum[V] = {};
          add(count, row, turn, sum);
          while (from < p.terms) {
            consumer.sync();
            count = list(row, row + turn, from);
            add(count, row, turn, sum);
          }
          finish(row, turn, sum);
        }
        consumer.sync();  // the list is written anew
        while (span < p.tile_rows && row % (2 * span) == 0) span *= 2;
      }
    }

   private:
    ARK_DEVICE Term* terms() const { return reinterpret_cast<Term*>(consumer.scratch() + kCountBytes); }
    ARK_DEVICE T* parts() const { return reinterpret_cast<T*>(consumer.scratch() + kCountBytes + kTermBytes); }

    ARK_DEVICE i64 index(int t) const {
      const i64 stride = task.operand(X::kIndex).stride[0];
      return p.index_dtype == kTypeI64 ? load_element(task.template address<i64>(X::kIndex) + t * stride)
                                       : load_element(task.template address<i32>(X::kIndex) + t * stride);
    }

    /// Lists the terms of the tile's rows [begin, end) from number `from` on, in their order, as long as there is room
    /// for those of another turn, and moves `from` behind what was looked at.
    ARK_DEVICE int list(int begin, int end, int& from) const {
      constexpr int kStep = kAhead * kConsumerThreads;
      int count = 0;
#pragma unroll 1
      for (; from < p.terms && count + kStep <= kMostTerms; from += kStep) {
        i64 named[kAhead];
        u32 ballot[kAhead];
#pragma unroll
        for (int u = 0; u < kAhead; ++u) {
          const int t = from + u * kConsumerThreads + consumer.thread();
          named[u] = t < p.terms ? index(t) : -1;
        }
        // the last turn's counts may still be read
        int* counts = reinterpret_cast<int*>(consumer.scratch()) + from / kStep % 2 * kAhead * kConsumerWarps;
#pragma unroll
        for (int u = 0; u < kAhead; ++u) {
          const i64 row = named[u] - first_row;
          ballot[u] = __ballot_sync(~0u, named[u] >= 0 && row >= begin && row < end && named[u] != p.without);
          if (consumer.lane() == 0) counts[u * kConsumerWarps + consumer.warp()] = __popc(ballot[u]);
        }
        consumer.sync();
#pragma unroll
        for (int u = 0; u < kAhead; ++u) {
          int before = count;
#pragma unroll
          for (int w = 0; w < kConsumerWarps; ++w) {
            const int n = counts[u * kConsumerWarps + w];
            before += w < consumer.warp() ? n : 0;
            count += n;
          }
          if ((ballot[u] >> consumer.lane() & 1) != 0)
            terms()[before + __popc(ballot[u] & ((1u << consumer.lane()) - 1))] = {
                from + u * kConsumerThreads + consumer.thread(), static_cast<i32>(named[u] - first_row)};
        }
      }
      consumer.sync();
      return count;
    }

    /// Adds the listed terms of the thread's row, `turn` rows from `row` on being worked on.
    ARK_DEVICE void add(int count, int row, int turn, T (&sum)[V]) const {
      const int shares = groups / turn, own = row + group / shares;
      if (!has_columns) return;
#pragma unroll 1
      for (int first = group % shares; first < count; first += shares * kUnroll) {
        Vec<S, V> x[kUnroll];
        bool mine[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          const int at = first + u * shares;
          const Term term = terms()[min(at, count - 1)];
          mine[u] = at < count && term.row == own;
          if (mine[u]) load(origin + term.number * source.stride[0], x[u]);
        }
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          if (mine[u]) {
            ARK_EACH sum[i] = sum[i] + widen(x[u].v[i]);
          }
        }
      }
    }

    /// Adds the shares of each row in their order, and stores it.
    ARK_DEVICE void finish(int row, int turn, const T (&sum)[V]) const {
      const int shares = groups / turn, share = group % shares, own = row + group / shares;
      T total[V];
      ARK_EACH total[i] = sum[i];
      if (shares > 1) {
        consumer.sync();  // what was there before has been read
        ARK_EACH parts()[consumer.thread() * V + i] = sum[i];
        consumer.sync();
        if (share == 0) {
#pragma unroll 1
          for (int s = 1; s < shares; ++s) {
            ARK_EACH total[i] = total[i] + parts()[(consumer.thread() + s * p.lanes) * V + i];
          }
        }
      }
      if (share != 0 || own >= rows || !has_columns) return;
      Vec<S, V> rounded;
      narrow_vector(total, rounded);
      S* at = to + own * out_stride;
      if constexpr (V == 1)
        store_element(at, rounded.v[0]);
      else
        store_vector(at, rounded);
    }

    static ARK_DEVICE void load(const S* at, Vec<S, V>& x) {
      if constexpr (V == 1)
        x.v[0] = load_element(at);
      else
        load_vector(at, x);
    }
  };
};

}  // namespace ark::device
