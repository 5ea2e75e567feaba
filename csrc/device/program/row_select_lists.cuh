// kRowSelect with lists: parts list what may be asked for, one tile a row finds the answer in the lists of its parts.
// Places in a list are those of whoever comes first; what is found does not depend on them.
#pragma once
#include "device/program/row_select_histogram.cuh"
#include "device/program/row_select_masses.cuh"
#include "device/program/support.cuh"

namespace ark::device {

struct SelectLists {
  using X = abi::RowSelectOperand;
  static constexpr u32 kListed = abi::kSelectListWords - 1;  // of a part
  static constexpr u32 kMost = 4 * kConsumerThreads;         // of all parts
  static constexpr u32 kNothing = ~0u;                       // farther than anything
  static constexpr u32 kFarthestListed = SelectMasses::kFarthest;
  static_assert(abi::kSelectMostTops == kConsumerThreads);

  struct Scratch {
    union {
      Vec<float, 4> tops[abi::kSelectMostTops / 4];
      Vec<u32, 4> all[kMost / 4];  // of the row
    };
    u32 list[kListed];  // of the part
    union {
      u64 masses[kMost];             // of the row's, of what is kept
      double exact[kMost];           // of the row's, as read: whole numbers, and so are their sums
      SelectMasses::Scratch of_row;  // where lists do not have it
    };
    double kept;  // the mass of what is no farther than what is found
    u32 count, found, cut;
    u32 all_near;  // not 0: lists hold whatever is not farthest
    float kth, top;
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
    if (consumer.warp() * 32 < p.tops) {  // the others have none to rank, and are in the way
      int nearer = 0, not_farther = 0;
      float largest = -op::infinity();
      Vec<float, 4> next = s.tops[0];
#pragma unroll 1
      for (int i = 0; i * 4 < p.tops; ++i) {
        const Vec<float, 4> v = next;
        next = s.tops[(i + 1) % (abi::kSelectMostTops / 4)];  // on its way while these are compared
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          largest = maximum_or_nan(largest, v.v[j]);
          nearer += v.v[j] > own;
          not_farther += v.v[j] >= own;
        }
      }
      if (nearer < k && k <= not_farther) s.kth = own;
      if (thread == 0) s.top = largest;
    }
    consumer.sync();
    top = s.top;
    return min(SelectHistogram::steps(top - s.kth), kFarthestListed);
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

  /// How many there are, and as many of them as there is room for.
  ARK_DEVICE void store(u32* to, u32 most) const {
    if (consumer.warp() != 0) return;
    const u32 count = s.count, word = count | (most == kFarthestListed ? abi::kSelectAllNear : 0);
#pragma unroll 1
    for (u32 i = consumer.lane(); i <= min(count, kListed); i += 32)
      store_element(to + i, i == 0 ? word : s.list[i - 1]);
  }

  /// Reads the row's lists, and makes masses of them where it `cuts`; false: they do not have it all. Lists have all
  /// that is near enough, so whoever has listed `k` of them has found it, whatever the maxima were of.
  ARK_DEVICE bool read_all(i64 k, bool cuts) const {
    const int thread = consumer.thread();
    s.all[thread] = {{kNothing, kNothing, kNothing, kNothing}};
    if (thread == 0) s.count = 0, s.found = kNothing, s.cut = 0, s.all_near = 0;
    consumer.sync();
    read(cuts);
    consumer.sync();
    return s.count <= kMost && (s.all_near != 0 || s.count >= k || k > p.size);
  }
  /// How many steps away the k-th is.
  ARK_DEVICE u32 find(i64 k) const {
    const u32 count = s.count;
#pragma unroll 1
    for (u32 at = consumer.thread(); at < count; at += kConsumerThreads) {
      const u32 own = reinterpret_cast<const u32*>(s.all)[at];
      int nearer = 0, not_farther = 0;
      Vec<u32, 4> next = s.all[0];
#pragma unroll 1
      for (u32 i = 0; i * 4 < count; ++i) {
        const Vec<u32, 4> v = next;
        next = s.all[(i + 1) % (kMost / 4)];
#pragma unroll
        for (int j = 0; j < 4; ++j) nearer += v.v[j] < own, not_farther += v.v[j] <= own;
      }
      if (nearer < k && k <= not_farther) s.found = own;
    }
    consumer.sync();
    if (s.found != kNothing) return s.found;
    return k <= 0 ? 0 : k <= p.size ? abi::kSelectFarthest : (1u << abi::kSelectBits) - 1;
  }

  /// find() and cut() at once, where no thread has two of what is listed; false: they do not, or it is not found.
  ARK_DEVICE bool find_and_cut(i64 k, float share, u32& found, u32& cut) const {
    const u32 thread = consumer.thread(), count = s.count;
    const u32 own = thread < count ? reinterpret_cast<const u32*>(s.all)[thread] : kNothing;
    if (count > kConsumerThreads) return false;
    double before = 0;
    if (thread < count) {
      int nearer = 0, not_farther = 0;
      double through = 0;
#pragma unroll 1
      for (u32 i = 0; i * 4 < count; ++i) {
        const Vec<u32, 4> v = s.all[i];
#pragma unroll
        for (u32 j = 0; j < 4; ++j) {
          const double mass = s.exact[i * 4 + j];
          if (v.v[j] < own) ++nearer, before += mass;
          if (v.v[j] <= own) ++not_farther, through += mass;
        }
      }
      if (nearer < k && k <= not_farther) s.found = own, s.kept = through;
    }
    consumer.sync();
    found = s.found;
    if (found == kNothing) return false;
    const double kept = s.kept;
    if (own <= found && kept - before > static_cast<double>(fmaxf(share, 0.0f)) * kept) atomicMax(&s.cut, own);
    consumer.sync();
    cut = s.cut;
    return true;
  }

  /// What is cut from the `kept` of the lists that find() has read, for the first thread. Sums are of integers.
  ARK_DEVICE u32 cut(u32 kept, float share) const {
    const u32 count = s.count, *all_of_row = reinterpret_cast<const u32*>(s.all);
#pragma unroll 1
    for (u32 at = consumer.thread(); at < count; at += kConsumerThreads) {
      const u32 own = all_of_row[at];
      s.masses[at] = own <= kept ? SelectMasses::mass_of(own) : 0;
    }
    consumer.sync();
#pragma unroll 1
    for (u32 at = consumer.thread(); at < count; at += kConsumerThreads) {
      const u32 own = all_of_row[at];
      u64 all = 0, behind = 0;
#pragma unroll 4
      for (u32 i = 0; i < count; ++i) {
        const u64 mass = s.masses[i];
        all += mass;
        if (all_of_row[i] >= own) behind += mass;
      }
      if (own <= kept && SelectMasses::exceeds(behind, share, all)) atomicMax(&s.cut, own);
    }
    consumer.sync();
    return s.cut;
  }

 private:
  /// A thread reads a part's list.
  ARK_DEVICE void read(bool cuts) const {
    const abi::Operand& x = task.operand(X::kSumsBefore);
    const u32* lists = task.address<const u32>(X::kSumsBefore) + row * x.stride[0];
#pragma unroll 1
    for (int part = consumer.thread(); part < p.parts; part += kConsumerThreads) {
      const u32* from = lists + part * x.stride[1];
      Vec<u32, 4> v;
      load_vector(from, v);
      const u32 count = v.v[0] & ~abi::kSelectAllNear;
      if (count != v.v[0]) s.all_near = 1;
      const u32 first = atomicAdd(&s.count, count > kListed ? kMost + 1 : count);
      if (first + count > kMost || count > kListed) continue;
#pragma unroll 1
      for (u32 i = 0; i <= count; i += 4) {
        if (i > 0) load_vector(from + i, v);
#pragma unroll
        for (u32 j = 0; j < 4; ++j)
          if (i + j > 0 && i + j <= count) {
            reinterpret_cast<u32*>(s.all)[first + i + j - 1] = v.v[j];
            if (cuts) s.exact[first + i + j - 1] = static_cast<double>(SelectMasses::mass_of(v.v[j]));
          }
      }
    }
  }
};

}  // namespace ark::device
