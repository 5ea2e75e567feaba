// The terms of some rows of a tile of kScatterSum: found among all indices, sorted by row, those of a row in their
// order.
#pragma once
#include "device/loop/tensor_map.cuh"  // numbers of dtypes
#include "device/program/support.cuh"

namespace ark::device {

struct ScatterList {
  using X = abi::ScatterSumOperand;
  static constexpr int kAhead = 4, kStep = kAhead * kConsumerThreads;  // indices of a thread, of a worker under way
  static constexpr int kMost = 2 * kStep, kMostRows = abi::kScatterMostRows;
  static_assert(kMost == abi::kScatterMostTerms && kMostRows == kConsumerThreads);
  // In scratch memory: counts of the steps' warps; numbers and rows (behind the list's first one) of terms as they are
  // found, later the sums of groups that share a row; numbers by row; of each warp's part of the list, how many of a
  // row come before; where rows begin.
  static constexpr int kCountBytes = 2 * kAhead * kConsumerWarps * 4, kPartBytes = kMost * 5, kNumberBytes = kMost * 4,
                       kBeforeBytes = kConsumerWarps * kMostRows * 2,
                       kBeginBytes = (kMostRows + kConsumerWarps + 4) * 4;
  static constexpr int kFoundAt = kCountBytes, kNumbersAt = kFoundAt + kPartBytes,
                       kBeforeAt = kNumbersAt + kNumberBytes, kBeginsAt = kBeforeAt + kBeforeBytes;
  static_assert(kBeginsAt + kBeginBytes <= kScratchBytes);

  const Consumer& consumer;
  const Task& task;
  const abi::ScatterSumParams& p;
  int tile_row = -1;  // the tile's first one
  int first = 0, count = 0;
  bool whole = false;  // all terms of all rows of the tile are listed

  ARK_DEVICE ScatterList(const Consumer& c, const Task& of) : consumer(c), task(of), p(of.record->params.scatter_sum) {}

  /// Tiles of the same rows that follow each other need one list.
  ARK_DEVICE void start(int row) {
    whole = whole && row == tile_row;
    tile_row = row;
  }

  /// Places of the list that hold the terms of a row of the tile.
  ARK_DEVICE int begin(int row) const { return begins()[row - first]; }
  ARK_DEVICE int end(int row) const { return begins()[row - first + 1]; }
  ARK_DEVICE int number(int place) const { return numbers()[place]; }
  ARK_DEVICE unsigned char* parts() const { return consumer.scratch() + kFoundAt; }

  /// Terms of the tile's rows [from_row, to_row) from number `from` on, as long as there is room for those of another
  /// turn; moves `from` behind what was looked at.
  ARK_DEVICE void list(int from_row, int to_row, int& from) {
    first = from_row;
    count = 0;
    i64 named[kAhead];
    load(from, named);
#pragma unroll 1
    for (; from < p.terms && count + kStep <= kMost; from += kStep) {
      u32 ballot[kAhead];
      int row[kAhead];
      // the last turn's counts may still be read
      int* counts = reinterpret_cast<int*>(consumer.scratch()) + from / kStep % 2 * kAhead * kConsumerWarps;
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        const i64 at = named[u] - tile_row;
        row[u] = static_cast<int>(at) - first;
        ballot[u] = __ballot_sync(~0u, named[u] >= 0 && at >= from_row && at < to_row && named[u] != p.without);
        if (consumer.lane() == 0) counts[u * kConsumerWarps + consumer.warp()] = __popc(ballot[u]);
      }
      load(from + kStep, named);  // under way while these are counted
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
        if ((ballot[u] >> consumer.lane() & 1) != 0) {
          const int place = before + __popc(ballot[u] & lanes_before());
          found()[place] = from + u * kConsumerThreads + consumer.thread();
          found_rows()[place] = static_cast<unsigned char>(row[u]);
        }
      }
    }
    if (count > 0) sort();
  }

 private:
  ARK_DEVICE i32* found() const { return reinterpret_cast<i32*>(parts()); }
  ARK_DEVICE unsigned char* found_rows() const { return parts() + kMost * 4; }
  ARK_DEVICE i32* numbers() const { return reinterpret_cast<i32*>(consumer.scratch() + kNumbersAt); }
  ARK_DEVICE i32* begins() const { return reinterpret_cast<i32*>(consumer.scratch() + kBeginsAt); }
  ARK_DEVICE unsigned short* before(int warp) const {
    return reinterpret_cast<unsigned short*>(consumer.scratch() + kBeforeAt) + warp * kMostRows;
  }
  ARK_DEVICE u32 lanes_before() const { return (1u << consumer.lane()) - 1; }

  ARK_DEVICE void load(int from, i64 (&named)[kAhead]) const {
    const i64 stride = task.operand(X::kIndex).stride[0];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int t = from + u * kConsumerThreads + consumer.thread();
      named[u] = -1;
      if (t < p.terms)
        named[u] = p.index_dtype == kTypeI64 ? load_element(task.template address<i64>(X::kIndex) + t * stride)
                                             : load_element(task.template address<i32>(X::kIndex) + t * stride);
    }
  }

  /// Counting sort; every warp has a part of the list, 32 terms at a time.
  ARK_DEVICE void sort() const {
    constexpr int kWords = kBeforeBytes / 4;
#pragma unroll
    for (int i = 0; i < kWords; i += kConsumerThreads) reinterpret_cast<u32*>(before(0))[i + consumer.thread()] = 0;
    consumer.sync();  // the list is complete
    const int each = (count + 32 * kConsumerWarps - 1) / (32 * kConsumerWarps) * 32;
    const int low = consumer.warp() * each, high = min(low + each, count);
    unsigned short* own = before(consumer.warp());
    for_terms(low, high, own, [](int, int, int) {});
    consumer.sync();
    int total = 0;
#pragma unroll
    for (int w = 0; w < kConsumerWarps; ++w) {
      unsigned short& of_row = before(w)[consumer.thread()];
      const int n = of_row;
      of_row = static_cast<unsigned short>(total);
      total += n;
    }
    int sum = total;  // of the rows of this warp up to the thread's
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int n = __shfl_up_sync(~0u, sum, step);
      sum += consumer.lane() >= step ? n : 0;
    }
    int* of_warps = begins() + kMostRows + 4;
    if (consumer.lane() == 31) of_warps[consumer.warp()] = sum;
    consumer.sync();
#pragma unroll
    for (int w = 0; w < kConsumerWarps; ++w) sum += w < consumer.warp() ? of_warps[w] : 0;
    begins()[consumer.thread() + 1] = sum;
    if (consumer.thread() == 0) begins()[0] = 0;
    consumer.sync();
    for_terms(low, high, own, [&](int at, int row, int place) { numbers()[begins()[row] + place] = found()[at]; });
    consumer.sync();
  }

  /// f(place in the list, row, how many of the row come before) for the terms [low, high) of a warp; counts them on.
  template <class F>
  ARK_DEVICE void for_terms(int low, int high, unsigned short* own, const F& f) const {
#pragma unroll 1
    for (int at = low; at < high; at += 32) {
      const int place = at + consumer.lane();
      const bool exists = place < high;
      const int row = exists ? found_rows()[place] : -1;
      const u32 same = __match_any_sync(~0u, row);
      const int earlier = __popc(same & lanes_before()), known = exists ? own[row] : 0;
      if (exists) f(place, row, known + earlier);
      __syncwarp();
      if (exists && earlier == 0) own[row] = static_cast<unsigned short>(known + __popc(same));
      __syncwarp();
    }
  }
};

}  // namespace ark::device
