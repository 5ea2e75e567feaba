// kRowSelect: how far the nearest elements of a row go, told without sorting. The steps of an element are a number of
// 28 bits; a round finds the next seven bits of the answer in a histogram of the elements that those so far leave, in
// shared memory. Each lane has a column of its own there, so that no two of a warp meet in a bank. Sums are of
// integers: any order gives the same bits. Masses are in units of which the row has 2^31, at least one. From the second
// round on, what is counted is listed too; the next round looks at the list, unless there was too much.
#pragma once
#include "device/program/support.cuh"

namespace ark::device {

template <class Programs>
struct RowSelect {
  static ARK_DEVICE void load_immutable(Loader&, const Task&) {}
  static ARK_DEVICE void load_dependent(Loader&, const Task&) {}

  static ARK_DEVICE void consume(Consumer& consumer, const Task& task) {
    consumer.wait_for_item(task);
#pragma unroll 1
    for (int row = task.first; row < task.first + task.count; ++row) {
      if (task.record->params.row_select.by_mass != 0)
        Selection<true>(consumer, task, row).run();
      else
        Selection<false>(consumer, task, row).run();
    }
  }

 private:
  static constexpr int kDigit = 7, kBins = 1 << kDigit, kLanes = 32, kAhead = 16;
  static constexpr u32 kMask = kBins - 1;
  static_assert(abi::kSelectBits == 4 * kDigit && kBins <= kConsumerThreads && kBins % kConsumerWarps == 0);

  struct Shared {
    u32 sums[kBins][kLanes];
    float listed[2816];  // distances
    u32 bins[kBins];
    u64 warps[kConsumerWarps];
    float mass[kConsumerWarps];
    u64 before;  // of the chosen bin
    u32 count;   // of what is listed, or would be
    u32 chosen;
  };
  static_assert(sizeof(Shared) <= kScratchBytes);
  static constexpr u32 kListed = sizeof(Shared::listed) / sizeof(float);

  static ARK_DEVICE u32 steps(float distance) {  // NaN: fminf takes the other
    return __float2uint_rz(fminf(distance * abi::kSelectSteps, static_cast<float>(abi::kSelectFarthest)));
  }
  static ARK_DEVICE float mass_of(float distance) { return distance == distance ? op::exp_fast(-distance) : 0.0f; }

  template <bool kMass>
  struct Selection {
    using X = abi::RowSelectOperand;

    const Consumer& consumer;
    const Task& task;
    const abi::RowSelectParams& p;
    Shared& s;
    int row;
    const float* data;
    i64 stride;
    u32 found = 0;    // the bits so far
    u64 outside = 0;  // elements before what they leave; the mass behind it
    u64 limit = 0;
    float unit = 0;  // of masses: so many in 1

    ARK_DEVICE Selection(const Consumer& c, const Task& of, int r)
        : consumer(c), task(of), p(of.record->params.row_select), s(*reinterpret_cast<Shared*>(c.scratch())), row(r) {
      data = task.has(X::kDistance)
                 ? task.address<const float>(X::kDistance) + row * task.operand(X::kDistance).stride[0]
                 : nullptr;
      stride = task.operand(X::kDistance).stride[1];
    }

    ARK_DEVICE void run() {
      if constexpr (kMass) unit = 2147483648.0f / fmaxf(whole_mass(), 1e-20f);
#pragma unroll 1
      for (int shift = abi::kSelectBits - kDigit; shift >= 0; shift -= kDigit) {
        count(shift);
        choose(shift);
      }
      if (consumer.thread() == 0) task.address<i64>(X::kOut)[row * task.operand(X::kOut).stride[0]] = found;
    }

   private:
    /// At least one unit, so that a tail of next to nothings is not lost.
    ARK_DEVICE u32 weight_of(float mass) const { return max(__float2uint_rn(mass * unit), mass > 0.0f ? 1u : 0u); }

    /// The histogram of the digit at `shift`.
    ARK_DEVICE void count(int shift) {
      const bool first = shift == abi::kSelectBits - kDigit;
      const u32 listed = first || shift == abi::kSelectBits - 2 * kDigit ? kListed + 1 : s.count;
      consumer.sync();  // everybody has read the count
#pragma unroll
      for (int i = 0; i < kBins / kConsumerWarps; ++i)
        s.sums[i * kConsumerWarps + consumer.warp()][consumer.lane()] = 0;
      if (consumer.thread() == 0) {
        if (listed > kListed) s.count = 0;
        s.chosen = 0;
      }
      consumer.sync();
      const auto add = [&](float distance) {
        const u32 n = steps(distance);
        if (((n ^ found) >> shift & ~kMask) != 0) return;
        u32 weight = 1;
        if constexpr (kMass) weight = weight_of(mass_of(distance));
        atomicAdd(&s.sums[n >> shift & kMask][consumer.lane()], weight);
        if (!first && listed > kListed)
          if (const u32 at = atomicAdd(&s.count, 1u); at < kListed) s.listed[at] = distance;
      };
      if (listed <= kListed) {
        for (u32 i = consumer.thread(); i < listed; i += kConsumerThreads) add(s.listed[i]);
      } else {
        each_element(add);
      }
      consumer.sync();
    }

    /// The sum of exp(-distance), in a fixed order.
    ARK_DEVICE float whole_mass() const {
      float mass = 0;
      each_element([&](float distance) { mass += mass_of(distance); });
#pragma unroll
      for (int distance = kLanes / 2; distance > 0; distance /= 2) mass += __shfl_xor_sync(~0u, mass, distance);
      if (consumer.lane() == 0) s.mass[consumer.warp()] = mass;
      consumer.sync();
      float all = 0;
#pragma unroll
      for (int w = 0; w < kConsumerWarps; ++w) all += s.mass[w];
      return all;
    }

    template <class F>
    ARK_DEVICE void each_element(const F& f) const {
      if (p.vector == 4)
        each_vector<4>(f);
      else
        each_vector<1>(f);
    }
    /// f(distance) for all elements of the row, kAhead vectors of a thread under way.
    template <int V, class F>
    ARK_DEVICE void each_vector(const F& f) const {
      constexpr int kStep = kConsumerThreads * V;
#pragma unroll 1
      for (int first = consumer.thread() * V; first < p.size; first += kAhead * kStep) {
        Vec<float, V> x[kAhead];
#pragma unroll
        for (int k = 0; k < kAhead; ++k)
          if (first + k * kStep < p.size) load(first + k * kStep, x[k]);
#pragma unroll
        for (int k = 0; k < kAhead; ++k) ARK_EACH if (first + k * kStep + i < p.size) f(x[k].v[i]);
      }
    }
    /// A row's last vector may end behind it: that one goes element by element.
    template <int V>
    ARK_DEVICE void load(int at, Vec<float, V>& x) const {
      if constexpr (V == 1) {
        x.v[0] = load_element(data + at * stride);
      } else if (at + V <= p.size) {
        load_vector(data + at, x);
      } else {
        ARK_EACH x.v[i] = at + i < p.size ? load_element(data + at + i) : 0.0f;
      }
    }

    /// The last bin that fits: what is before the bins only grows along them, what is behind only falls.
    ARK_DEVICE void choose(int shift) {
#pragma unroll 4
      for (int i = 0; i < kBins / kConsumerWarps; ++i) {
        const int bin = i * kConsumerWarps + consumer.warp();
        const u32 sum = __reduce_add_sync(~0u, s.sums[bin][consumer.lane()]);
        if (consumer.lane() == 0) s.bins[bin] = sum;
      }
      consumer.sync();
      const int bin = consumer.thread();
      const u64 own = bin < kBins ? s.bins[bin] : 0;
      u64 before = 0;
      const u64 all = sums_before(own, before), rest = all - before;
      if (shift == abi::kSelectBits - kDigit) limit = bound(all);
      const bool fits = kMass ? outside + rest > limit : outside + before < limit;
      if (bin < kBins && fits) atomicMax(&s.chosen, static_cast<u32>(bin));
      consumer.sync();
      const u32 chosen = s.chosen;
      if (bin == static_cast<int>(chosen)) s.before = kMass ? rest - own : before;
      consumer.sync();
      outside += s.before;
      found |= chosen << shift;
    }

    /// The sum over all threads; `before`: over those before this one.
    ARK_DEVICE u64 sums_before(u64 own, u64& before) const {
      u64 through = own;
#pragma unroll
      for (int distance = 1; distance < kLanes; distance *= 2) {
        const u64 other = __shfl_up_sync(~0u, through, distance);
        if (consumer.lane() >= distance) through += other;
      }
      if (consumer.lane() == kLanes - 1) s.warps[consumer.warp()] = through;
      consumer.sync();
      u64 all = 0;
      before = through - own;
#pragma unroll
      for (int w = 0; w < kConsumerWarps; ++w) {
        if (w < consumer.warp()) before += s.warps[w];
        all += s.warps[w];
      }
      return all;
    }

    /// Fewer elements than that; more mass than that.
    ARK_DEVICE u64 bound(u64 all) const {
      const i64 at = row * task.operand(X::kBound).stride[0];
      if constexpr (kMass) {
        const float share = task.address<const float>(X::kBound)[at];
        return static_cast<u64>(max(static_cast<double>(share), 0.0) * static_cast<double>(all));
      } else {
        return static_cast<u64>(max(task.address<const i64>(X::kBound)[at], i64{0}));
      }
    }
  };
};

}  // namespace ark::device
