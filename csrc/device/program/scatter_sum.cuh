// kScatterSum: a tile's rows, each the sum of the source's rows whose index names it. The threads look through all
// indices, 1024 at a time, list the terms of the tile's rows in shared memory, and sort the list by row, in its order
// (scatter_list.cuh). `lanes` threads add a row's terms, a vector of its columns each; where the tile has fewer rows
// than there are such groups, several groups share a row's terms (every so many of them) and are added in order. Tiles
// of the same rows that an item has one after another use one list. Which groups add what depends on the indices and
// the tiles alone, so that results have the same bits in every run of a plan.
#pragma once
#include "device/abi/variants.h"
#include "device/loop/tensor_map.cuh"  // numbers of dtypes
#include "device/program/scatter_list.cuh"
#include "device/program/support.cuh"

namespace ark::device {

template <class Programs>
struct ScatterSum {
  static ARK_DEVICE void consume(Consumer& consumer, const Task& task) {
    consumer.wait_for_item(task);
    const abi::ScatterSumParams& p = task.record->params.scatter_sum;
    ScatterList terms(consumer, task);
#pragma unroll 1
    for (int t = task.first; t < task.first + task.count; ++t) {
      switch (p.dtype) {
        case kTypeF16:
          run<f16, kTypeF16>(consumer, task, t, terms);
          break;
        case kTypeBF16:
          run<bf16, kTypeBF16>(consumer, task, t, terms);
          break;
        case kTypeF32:
          run<float, kTypeF32>(consumer, task, t, terms);
          break;
        default:
          run<double, kTypeF64>(consumer, task, t, terms);
      }
    }
  }

 private:
  /// Of types that no sum of this kernel has there is no code.
  template <class S, int kType>
  static ARK_DEVICE void run(const Consumer& consumer, const Task& task, int tile, ScatterList& terms) {
    constexpr int V = 16 / static_cast<int>(sizeof(S));
    if constexpr ((Programs::kScatterTypes & abi::type_bit(kType)) != 0) {
      if (task.record->params.scatter_sum.vector == V)
        Tile<S, V>(consumer, task, tile, terms).run();
      else
        Tile<S, 1>(consumer, task, tile, terms).run();
    }
  }

  template <class S, int V>
  struct Tile {
    using X = abi::ScatterSumOperand;
    using T = decltype(widen(S{}));
    static constexpr int kUnroll = 8, kRun = 16;  // terms under way: of a row, of a run of rows
    static_assert(kConsumerThreads * V * static_cast<int>(sizeof(T)) <= ScatterList::kPartBytes);

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
    ScatterList& terms;

    ARK_DEVICE Tile(const Consumer& c, const Task& of, int tile, ScatterList& list)
        : consumer(c), task(of), p(of.record->params.scatter_sum), source(of.operand(X::kSource)), terms(list) {
      const int c1 = tile % of.record->grid[abi::GridAxis::kMiddle],
                c0 = tile / of.record->grid[abi::GridAxis::kMiddle];
      first_row = c0 * p.tile_rows;
      terms.start(first_row);
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
        int from = terms.whole ? p.terms : 0;
        if (!terms.whole) {
          terms.list(row, row + span, from);
          terms.whole = span == p.tile_rows && from >= p.terms;
        }
        if (from < p.terms && span > turn) {
          span /= 2;
          consumer.sync();
          continue;
        }
        const int end = min(row + span, rows);
        if (turn == groups && from >= p.terms) {
          rows_alone(row, end);
          row = end;
        }
#pragma unroll 1
        for (; row < end; row += turn) {
          T sum[V] = {};
          add(row, turn, sum);
          while (from < p.terms) {
            consumer.sync();
            terms.list(row, row + turn, from);
            add(row, turn, sum);
          }
          finish(row, turn, sum);
        }
        consumer.sync();  // the list is written anew
        while (span < p.tile_rows && row % (2 * span) == 0) span *= 2;
      }
    }

   private:
    ARK_DEVICE T* parts() const { return reinterpret_cast<T*>(terms.parts()); }

    ARK_DEVICE bool is_empty(int row) const { return terms.count == 0 || terms.begin(row) == terms.end(row); }

    /// Rows [row, end), all of whose terms are listed, first those that have none. A group has rows that follow each
    /// other, about as many terms as others: these are one run, so that loads of the next rows are under way too.
    ARK_DEVICE void rows_alone(int row, int end) const {
      if (!has_columns) return;
#pragma unroll 4
      for (int own = row + group; own < end; own += groups)
        if (is_empty(own)) store(own, Vec<S, V>{});
      if (terms.count == 0) return;
      int own = first_of(group, row, end), at = terms.begin(own);
      const int stop = terms.begin(first_of(group + 1, row, end));
      if (at >= stop) return;
      int until = find_row(own, at);
      T sum[V] = {};
#pragma unroll 1
      for (; at < stop; at += kRun) {
        Vec<S, V> x[kRun];
#pragma unroll
        for (int u = 0; u < kRun; ++u)
          if (at + u < stop) load(origin + terms.number(at + u) * source.stride[0], x[u]);
#pragma unroll
        for (int u = 0; u < kRun; ++u) {
          if (at + u >= stop) break;
          if (at + u == until) {
            store_sum(own, sum);
            ARK_EACH sum[i] = T{};
            until = find_row(++own, at + u);
          }
          ARK_EACH sum[i] = sum[i] + widen(x[u].v[i]);
        }
      }
      store_sum(own, sum);
    }
    /// The first row whose terms begin in a group's share of the list, or behind it.
    ARK_DEVICE int first_of(int share, int row, int end) const {
      const int wanted = terms.count * share / groups;
#pragma unroll 1
      while (row < end) {
        const int middle = (row + end) / 2;
        if (terms.begin(middle) < wanted)
          row = middle + 1;
        else
          end = middle;
      }
      return row;
    }
    /// Moves `own` on to the row that has this place of the list; the end of that row's terms.
    ARK_DEVICE int find_row(int& own, int place) const {
      int until = terms.end(own);
#pragma unroll 1
      while (until == place) until = terms.end(++own);
      return until;
    }

    /// Adds the listed terms of the thread's row, `turn` rows from `row` on being worked on.
    ARK_DEVICE void add(int row, int turn, T (&sum)[V]) const {
      const int shares = groups / turn, own = row + group / shares;
      if (has_columns && terms.count > 0 && own < rows) add_terms(own, group % shares, shares, sum);
    }
    ARK_DEVICE void add_terms(int own, int share, int shares, T (&sum)[V]) const {
      const int end = terms.end(own);
#pragma unroll 1
      for (int first = terms.begin(own) + share; first < end; first += shares * kUnroll) {
        Vec<S, V> x[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          const int at = first + u * shares;
          if (at < end) load(origin + terms.number(at) * source.stride[0], x[u]);
        }
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          if (first + u * shares < end) {
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
      store_sum(own, total);
    }

    ARK_DEVICE void store_sum(int row, const T (&sum)[V]) const {
      Vec<S, V> rounded;
      narrow_vector(sum, rounded);
      store(row, rounded);
    }
    ARK_DEVICE void store(int row, const Vec<S, V>& x) const {
      S* at = to + row * out_stride;
      if constexpr (V == 1)
        store_element(at, x.v[0]);
      else
        store_vector(at, x);
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
