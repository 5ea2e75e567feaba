// kRowSelect with lists: parts list what may be asked for, one tile a row finds the answer in the lists of its parts.
// Places in a list are those of whoever comes first; what is found does not depend on them.
#pragma once
#include "device/program/row_select_histogram.cuh"
#include "device/program/support.cuh"

namespace ark::device {

struct SelectLists {
  using X = abi::RowSelectOperand;
  static constexpr u32 kListed = abi::kSelectListWords - 1;  // of a part
  static constexpr u32 kMost = 4 * kConsumerThreads;         // of all parts
  static constexpr u32 kNothing = ~0u;                       // farther than anything
  static_assert(abi::kSelectMostTops == kConsumerThreads);

  struct Scratch {
    union {
      Vec<float, 4> tops[abi::kSelectMostTops / 4];
      Vec<u32, 4> all[kMost / 4];  // of the row
    };
    u32 list[kListed];  // of the part
    u32 count, found;
    float kth;
  };

  const Consumer& consumer;
  const Task& task;
  const abi::RowSelectParams& p;
  Scratch& s;
  int row;

  /// The row's top, and how many steps away the farthest is that a part has to list: so many parts have one as near as
  /// their best ones' k-th. Everything that is not farthest, where there are fewer parts.
  ARK_DEVICE u32 choose(i64 k, float& top) const {
    const int thread = consumer.thread();
    const abi::Operand& x = task.operand(X::kTops);
    float own = -op::infinity();
    if (thread < p.tops)
      own = load_element(task.address<const float>(X::kTops) + row * x.stride[0] + thread * x.stride[1]);
    reinterpret_cast<float*>(s.tops)[thread] = own;
    if (thread == 0) s.kth = -op::infinity(), s.count = 0;
    consumer.sync();
    top = -op::infinity();
    int nearer = 0, not_farther = 0;
#pragma unroll 1
    for (int i = 0; i * 4 < p.tops; ++i) {
      const Vec<float, 4> v = s.tops[i];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        top = maximum_or_nan(top, v.v[j]);
        nearer += v.v[j] > own;
        not_farther += v.v[j] >= own;
      }
    }
    if (nearer < k && k <= not_farther) s.kth = own;
    consumer.sync();
    return min(SelectHistogram::steps(top - s.kth), static_cast<u32>(abi::kSelectFarthest - 1));
  }

  /// Neighbours of which the first `left` are there.
  ARK_DEVICE void add(const Vec<float, 4>& x, int left, u32 most) const {
    u32 n[4], nearest = kNothing;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      n[i] = i < left ? SelectHistogram::steps(x.v[i]) : kNothing;
      nearest = min(nearest, n[i]);
    }
    if (nearest > most) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (n[i] > most) continue;
      const u32 at = atomicAdd(&s.count, 1u);
      if (at < kListed) s.list[at] = n[i];
    }
  }

  /// How many there are, and as many of them as there is room for. The first warp's: it may begin with the next list.
  ARK_DEVICE void store(u32* to) const {
    if (consumer.warp() != 0) return;
    const u32 count = s.count;
#pragma unroll 1
    for (u32 i = consumer.lane(); i <= min(count, kListed); i += 32)
      store_element(to + i, i == 0 ? count : s.list[i - 1]);
    __syncwarp();
  }

  /// Reads the row's lists; false: they do not have it all. Then how many steps away the k-th is, for the first thread.
  ARK_DEVICE bool find(i64 k, u32& found) const {
    const int thread = consumer.thread();
    s.all[thread] = {{kNothing, kNothing, kNothing, kNothing}};
    if (thread == 0) s.count = 0, s.found = kNothing;
    consumer.sync();
    read();
    consumer.sync();
    const u32 count = s.count;
    if (count > kMost) return false;
#pragma unroll 1
    for (u32 at = thread; at < count; at += kConsumerThreads) {
      const u32 own = reinterpret_cast<const u32*>(s.all)[at];
      int nearer = 0, not_farther = 0;
#pragma unroll 1
      for (u32 i = 0; i * 4 < count; ++i) {
        const Vec<u32, 4> v = s.all[i];
#pragma unroll
        for (int j = 0; j < 4; ++j) nearer += v.v[j] < own, not_farther += v.v[j] <= own;
      }
      if (nearer < k && k <= not_farther) s.found = own;
    }
    consumer.sync();
    if (thread != 0) return true;
    found = s.found;
    if (found == kNothing) found = k <= 0 ? 0 : k <= p.size ? abi::kSelectFarthest : (1u << abi::kSelectBits) - 1;
    return true;
  }

 private:
  /// A thread reads a part's list.
  ARK_DEVICE void read() const {
    const abi::Operand& x = task.operand(X::kSumsBefore);
    const u32* lists = task.address<const u32>(X::kSumsBefore) + row * x.stride[0];
#pragma unroll 1
    for (int part = consumer.thread(); part < p.parts; part += kConsumerThreads) {
      const u32* from = lists + part * x.stride[1];
      Vec<u32, 4> v;
      load_vector(from, v);
      const u32 count = v.v[0];
      const u32 first = atomicAdd(&s.count, count > kListed ? kMost + 1 : count);
      if (first + count > kMost || count > kListed) continue;
#pragma unroll 1
      for (u32 i = 0; i <= count; i += 4) {
        if (i > 0) load_vector(from + i, v);
#pragma unroll
        for (u32 j = 0; j < 4; ++j)
          if (i + j > 0 && i + j <= count) reinterpret_cast<u32*>(s.all)[first + i + j - 1] = v.v[j];
      }
    }
  }
};

}  // namespace ark::device
